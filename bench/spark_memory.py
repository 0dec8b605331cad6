"""``python -m bench spark-memory``: the memory of Spark's processes while they read histories of growing size."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from bench import report
from bench.benchmark import Benchmark
from bench.place import Place, place
from bench.processes import run_side_by_side
from bench.spark_rows import fill_history

__all__ = ["BENCHMARK", "Family"]

MIB = 1024 * 1024
EVERY = 0.05
"""Seconds between two samples."""
LONGEST = 1800.0
GROWTH = 1.25
"""How much more the longest history may take than the shortest."""
WORKER = "pyspark.daemon"
DRIVER, JVM, WORKERS = "driver", "jvm", "workers"


class Family:
    """Samples the resident sets of a process and its children: the driver, its JVM, and the largest Python worker."""

    def __init__(self) -> None:
        self.peak = dict.fromkeys((DRIVER, JVM, WORKERS), 0.0)
        self.samples = 0

    def __call__(self, pid: int) -> None:
        try:
            root = psutil.Process(pid)
            while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
                for kind, size in self._sizes(root):
                    self.peak[kind] = max(self.peak[kind], size / MIB)
                self.samples += 1
                time.sleep(EVERY)
        except psutil.NoSuchProcess:
            pass

    @staticmethod
    def _sizes(root: psutil.Process) -> Iterator[tuple[str, int]]:
        yield DRIVER, root.memory_info().rss
        for child in root.children(recursive=True):
            try:
                size, command = child.memory_info().rss, child.cmdline()
            except psutil.Error:
                continue
            if WORKER in " ".join(command):
                yield WORKERS, size
            elif command and command[0].endswith("java"):
                yield JVM, size


def add_options(parser: argparse.ArgumentParser) -> None:
    sizes = [125_000, 250_000, 500_000, 1_000_000, 2_000_000]
    parser.add_argument(
        "--items", type=int, nargs="+", default=sizes, help="items of each history; default %(default)s"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "spark", memory=True) as here:
        peaks = {items: _peak(here, items) for items in options.items}
        machine = report.machine(here.client)
    grown = {kind: round(_growth([peak[kind] for peak in peaks.values()]), 2) for kind in (DRIVER, JVM, WORKERS)}
    return {
        "machine": machine,
        "peak_mib": {
            str(items): {kind: round(size, 1) for kind, size in peak.items()} for items, peak in peaks.items()
        },
        "grown": grown,
        "most": GROWTH,
        "reached": max(grown[DRIVER], grown[WORKERS]) <= GROWTH,
    }


def _peak(here: Place, items: int) -> dict[str, float]:
    """Let Spark read a history of ``items`` items."""
    collection = here.client[here.database][f"{here.collection}_{items}"]
    try:
        fill_history(collection, items)
        family = Family()
        where = [here.uri, here.database, collection.name, str(items)]
        [result] = run_side_by_side(
            [[sys.executable, "-m", "bench.spark_side", "read", *where]], seconds=LONGEST, watch=family
        )
    finally:
        collection.drop()
    if result["done"] != items:
        raise RuntimeError(f"{result['done']:,} of {items:,} items were read")
    report.progress(f"{items:10,}  " + "  ".join(f"{kind} {size:,.0f} MiB" for kind, size in family.peak.items()))
    return family.peak


def _growth(sizes: Sequence[float]) -> float:
    """Return the ratio of the last peak to the first."""
    return sizes[-1] / sizes[0] if sizes[0] else 0.0


BENCHMARK = Benchmark("the memory of Spark's processes while they read histories of growing size", add_options, run)
