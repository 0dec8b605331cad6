"""``python -m bench workers``: a full queue emptied by workers, beside the bare driver."""

from __future__ import annotations

import argparse
from typing import Any

from bench import burn_down, report
from bench.benchmark import Benchmark
from bench.operations import PAYLOAD_BYTES
from bench.place import place

__all__ = ["BENCHMARK"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=200_000, help="items of a burn-down; default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="burn-downs of each way in turn; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "workers", memory=True) as here:
        result: dict[str, Any] = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {"rounds": options.rounds},
            "burn_down": burn_down.measure(here, options.items, options.rounds),
        }
    missed = [title for title, each in result["burn_down"]["ways"].items() if not each["reached"]]
    return {**result, "missed": missed}


BENCHMARK = Benchmark(
    "a full queue emptied by workers: rates, memory, and the same beside other queues", add_options, run
)
