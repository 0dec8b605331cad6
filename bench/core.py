"""``python -m bench core``: operations beside the bare driver, alone and in batches, and claims in deep queues."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from bench import batches, counting, depth, replay, report, single
from bench.batches import BATCHES, SIZES
from bench.benchmark import Benchmark
from bench.operations import OPERATIONS, PAYLOAD_BYTES
from bench.place import Place, place
from bench.shells import SHELLS

__all__ = ["BENCHMARK"]

PARTS = ("single", "batches", "replay", "stats", "depth")


def add_options(parser: argparse.ArgumentParser) -> None:
    names = [operation.name for operation in (*OPERATIONS, *BATCHES)]
    only = "only this one; may be repeated"
    parser.add_argument("--part", action="append", choices=PARTS, help=only)
    parser.add_argument("--operation", action="append", choices=names, help=f"{only}; leaves replay and stats out")
    parser.add_argument("--shell", action="append", choices=list(SHELLS), help=only)
    parser.add_argument("--rounds", type=positive, default=240, help="pairs of blocks; default %(default)s")
    parser.add_argument("--calls", type=positive, default=20, help="calls in a block; default %(default)s")
    parser.add_argument(
        "--batch", type=positive, action="append", metavar="N", help=f"items of a batch; may be repeated; {SIZES}"
    )
    parser.add_argument("--batch-rounds", type=positive, default=8, help="pairs of blocks there; default %(default)s")
    parser.add_argument("--replay", type=positive, default=2000, help="items of a replay; default %(default)s")
    parser.add_argument("--replay-rounds", type=positive, default=10, help="pairs of replays; default %(default)s")
    parser.add_argument("--stats-rounds", type=positive, default=600, help="pairs of turns; default %(default)s")
    parser.add_argument(
        "--depth", type=int, default=1_000_000, help="items of each state; 0 leaves it out; default %(default)s"
    )
    parser.add_argument("--depth-rounds", type=positive, default=30, help="pairs of blocks there; default %(default)s")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{number} is below 1")
    return number


def run(options: argparse.Namespace) -> dict[str, Any]:
    settings = ("rounds", "calls", "batch_rounds", "replay", "replay_rounds", "stats_rounds", "depth")
    with place(options.uri, options.database, "core") as here:
        result = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {name: getattr(options, name) for name in settings},
            **{key: measured for key, measured in _measure(here, options) if measured},
        }
    return {**result, "missed": _below_target(result)}


def _measure(here: Place, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    parts, shells = options.part or PARTS, options.shell or SHELLS
    if "single" in parts:
        yield "shells", {name: measured for name in shells if (measured := _single(name, here, options))}
    if "batches" in parts:
        yield "batches", {name: measured for name in shells if (measured := _batches(name, here, options))}
    if "replay" in parts and not options.operation:
        sizes = {"items": options.replay, "rounds": options.replay_rounds}
        yield "replay", {name: replay.measure_replay(name, here, **sizes) for name in shells}
    if "stats" in parts and not options.operation:
        yield "stats", {name: counting.measure_counting(name, here, rounds=options.stats_rounds) for name in shells}
    if "depth" in parts and options.depth > 0:
        yield "depth", depth.measure_depth(here, depth=options.depth, rounds=options.depth_rounds)


def _single(shell: str, here: Place, options: argparse.Namespace) -> dict[str, Any]:
    wanted = [each for each in OPERATIONS if not options.operation or each.name in options.operation]
    if not wanted:
        return {}
    return single.measure_shell(shell, here, wanted, rounds=options.rounds, calls=options.calls)


def _batches(shell: str, here: Place, options: argparse.Namespace) -> dict[str, Any]:
    wanted = [each for each in BATCHES if not options.operation or each.name in options.operation]
    if not wanted:
        return {}
    sizes = list(options.batch or SIZES)
    return batches.measure_batches(shell, here, wanted, sizes=sizes, rounds=options.batch_rounds)


def _below_target(result: dict[str, Any]) -> list[str]:
    """Return the names of the operations below their target."""
    return [name for name, each in _by_name(result) if not each["reached"]]


def _by_name(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in ("shells", "batches"):
        for shell, measured in result.get(part, {}).items():
            for each in measured["operations"]:
                size = f" of {each['items']}" if "items" in each else ""
                yield f"{shell}: {each['operation']}{size}", each
    for part in ("replay", "stats"):
        for shell, each in result.get(part, {}).items():
            yield f"{shell}: {part}", each
    for scenario in result.get("depth", {}).get("scenarios", []):
        for each in scenario["operations"]:
            yield f"{scenario['scenario']}: {each['operation']}", each


BENCHMARK = Benchmark(
    "single operations, batches and replay beside the bare driver, the cost of stats, and claims in deep queues",
    add_options,
    run,
)
