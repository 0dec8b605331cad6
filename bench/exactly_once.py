"""``python -m bench exactly-once``: forks and joins, compared with moves, and a source, compared with inserts."""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Any

from bench import report
from bench.benchmark import Benchmark
from bench.operations import PAYLOAD_BYTES, payload
from bench.place import Place, place
from bench.processes import run_side_by_side
from bench.shapes import BACKWARDS, INPUTS, INSERTS, OUTPUTS, SHAPES
from mongoq import Broker

__all__ = ["BENCHMARK", "MOST"]

PUSHED = 10_000
MOST = {"fork": 3.0, "join": 4.0}
"""How many moves each may cost."""
LEAST = 0.6
"""How fast a source is to be, beside inserts."""
WAYS = (*SHAPES, INSERTS)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=20_000, help="items, or pairs; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="times that each shape is taken; default %(default)s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "shapes", memory=True) as here:
        taken: dict[str, list[float]] = {shape: [] for shape in WAYS}
        for turn in range(options.rounds):
            for shape in reversed(WAYS) if turn % 2 else WAYS:
                seconds = _run_seconds(here, shape, options.items)
                taken[shape].append(seconds)
                report.progress(f"{shape:8} {options.items / seconds:9,.0f}/s")
        result = {
            "machine": report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES),
            "settings": {"rounds": options.rounds, "items": options.items},
            "shapes": {shape: _result(shape, taken, options.items) for shape in WAYS},
        }
    return {**result, "missed": [shape for shape, told in result["shapes"].items() if not told["reached"]]}


def _run_seconds(here: Place, shape: str, items: int) -> float:
    """Fill the queues, drain them with the pipeline, and return the seconds until the last write."""
    collection = here.client[here.database][f"{here.collection}_shape"]
    try:
        with Broker(collection) as broker:
            for queue in INPUTS.get(shape, []):
                numbers = range(items)[:: -1 if BACKWARDS.get(shape) == queue else 1]
                for start in range(0, items, PUSHED):
                    broker.queue(queue).push_many(map(payload, numbers[start : start + PUSHED]))
        command = [sys.executable, "-m", "bench.shapes", shape, here.uri, here.database, collection.name, str(items)]
        [result] = run_side_by_side([command])
        there = collection.count_documents({"q": {"$in": list(OUTPUTS)}})
        if there != items * (2 if shape == "fork" else 1):
            raise RuntimeError(f"{shape}: {there:,} items came out")
        return float(result["ended"] - result["began"])
    finally:
        collection.drop()


def _result(shape: str, taken: dict[str, list[float]], items: int) -> dict[str, Any]:
    row = {
        "per_second": round(items / median(taken[shape])),
        "all": [round(items / seconds) for seconds in taken[shape]],
    }
    if shape in ("source", INSERTS):
        ratio = round(median(bare / own for own, bare in zip(taken[shape], taken[INSERTS], strict=True)), 2)
        return {**row, "to_inserts": ratio, "least": LEAST, "reached": ratio >= LEAST}
    moves = round(median(own / move for own, move in zip(taken[shape], taken["move"], strict=True)), 2)
    most = MOST.get(shape)
    return {**row, "moves": moves, "most": most, "reached": most is None or moves <= most}


BENCHMARK = Benchmark("forks of two and joins of two, counted in moves, and a source beside inserts", add_options, run)
