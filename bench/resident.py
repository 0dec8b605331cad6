"""The memory of a worker that empties a long queue in a process of its own."""

from __future__ import annotations

import time
from typing import Any

import psutil

from bench import report
from bench.burn_down import Subject, empty_queue
from bench.place import Place

__all__ = ["measure"]

MIB = 1024 * 1024
EVERY = 0.05
"""Seconds between two samples."""
TARGET = 150.0
"""MiB at most."""
WAYS = ("threads", "asyncio")


class Resident:
    """Samples the resident set of a process until it has ended."""

    def __init__(self) -> None:
        self.first = self.peak = 0.0
        self.samples = 0

    def __call__(self, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                self._take(process.memory_info().rss / MIB)
                time.sleep(EVERY)
        except psutil.NoSuchProcess:
            pass

    def _take(self, size: float) -> None:
        if size:
            self.first = self.first or size
            self.peak = max(self.peak, size)
            self.samples += 1


def measure(here: Place, items: int) -> dict[str, Any]:
    """Let each kind of worker empty a queue of so many items, and return its peak."""
    return {way: _measure(here, way, items) for way in WAYS}


def _measure(here: Place, way: str, items: int) -> dict[str, Any]:
    resident = Resident()
    burn = empty_queue(here, Subject(f"{way}, memory", way), items, watch=resident)
    report.progress(f"memory, {way}: {resident.peak:.0f} MiB at most, {burn.per_second:,.0f}/s")
    return {
        "items": items,
        "peak_mib": round(resident.peak, 1),
        "before_mib": round(resident.first, 1),
        "samples": resident.samples,
        "per_second": round(burn.per_second),
        "left": burn.left,
        "target": TARGET,
        "reached": burn.left == 0 and 0 < resident.peak < TARGET,
    }
