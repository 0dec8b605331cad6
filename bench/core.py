"""``python -m bench core``: single operations beside the bare driver, and claims in deep queues."""

from __future__ import annotations

import argparse
from typing import Any

from bench import depth, report, single
from bench.benchmark import Benchmark
from bench.operations import OPERATIONS, PAYLOAD_BYTES
from bench.place import Place, place
from bench.shells import SHELLS

__all__ = ["BENCHMARK"]


def add_options(parser: argparse.ArgumentParser) -> None:
    names = [operation.name for operation in OPERATIONS]
    parser.add_argument("--rounds", type=positive, default=100, help="pairs of blocks; default %(default)s")
    parser.add_argument("--calls", type=positive, default=20, help="calls in a block; default %(default)s")
    parser.add_argument(
        "--depth", type=int, default=1_000_000, help="items of each state; 0 leaves it out; default %(default)s"
    )
    parser.add_argument("--depth-rounds", type=positive, default=30, help="pairs of blocks there; default %(default)s")
    parser.add_argument("--operation", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument("--shell", action="append", choices=list(SHELLS), help="only this one")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{number} is below 1")
    return number


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "core") as here:
        result: dict[str, Any] = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {"rounds": options.rounds, "calls": options.calls, "depth": options.depth},
            "shells": _shells(here, options),
        }
        if options.depth > 0:
            result["depth"] = depth.measure_depth(here, depth=options.depth, rounds=options.depth_rounds)
    return {**result, "missed": _missed(result)}


def _shells(here: Place, options: argparse.Namespace) -> dict[str, Any]:
    wanted = [each for each in OPERATIONS if not options.operation or each.name in options.operation]
    return {
        name: single.measure_shell(name, here, wanted, rounds=options.rounds, calls=options.calls)
        for name in options.shell or SHELLS
    }


def _missed(result: dict[str, Any]) -> list[str]:
    """Name what did not reach its target."""
    groups = [(name, shell["operations"]) for name, shell in result["shells"].items()]
    groups += [(each["scenario"], each["operations"]) for each in result.get("depth", {}).get("scenarios", [])]
    return [f"{group}: {each['operation']}" for group, results in groups for each in results if not each["reached"]]


BENCHMARK = Benchmark(
    "each single operation beside the same command of the bare driver, and claims in deep queues",
    add_options,
    run,
)
