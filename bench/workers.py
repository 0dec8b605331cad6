"""``python -m bench workers``: a full queue emptied by workers, beside the bare driver and other queues."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench import burn_down, peers, report, resident
from bench.benchmark import Benchmark
from bench.drain import BATCH, CLAIM, CONCURRENCY
from bench.operations import PAYLOAD_BYTES
from bench.place import Place, place

__all__ = ["BENCHMARK"]

BESIDE = "threads"
"""The worker that other queues stand beside."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=200_000, help="items of a burn-down; default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="burn-downs of each way in turn; default %(default)s")
    parser.add_argument("--memory-items", type=int, default=1_000_000, help="0 leaves it out; default %(default)s")
    parser.add_argument(
        "--peer-items", type=int, default=20_000, help="items of other queues, about; default %(default)s"
    )
    parser.add_argument(
        "--peers", type=Path, metavar="FOLDER", help="where other queues are, or are installed; default a new one"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave other queues out")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "workers", memory=True) as here:
        result: dict[str, Any] = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {"rounds": options.rounds, "concurrency": CONCURRENCY, "batch": BATCH, "bare_batch": CLAIM},
            "burn_down": burn_down.measure(here, options.items, options.rounds),
            "memory": resident.measure(here, options.memory_items) if options.memory_items else None,
        }
        beside = result["burn_down"]["ways"][BESIDE]["per_second"]
        result["peers"] = None if options.no_peers else _peers(here, options, beside)
    return {**result, "missed": _below_target(result)}


def _peers(here: Place, options: argparse.Namespace, beside: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        where = options.peers or Path(folder)
        return peers.measure(here, where, items=options.peer_items, rounds=options.rounds, mongoq=beside)


def _below_target(result: dict[str, Any]) -> list[str]:
    missed = [title for title, each in result["burn_down"]["ways"].items() if not each["reached"]]
    return missed + [f"memory, {way}" for way, each in (result["memory"] or {}).items() if not each["reached"]]


BENCHMARK = Benchmark(
    "a full queue emptied by workers beside a bare loop, their memory, and the same with other queues",
    add_options,
    run,
)
