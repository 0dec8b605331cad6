"""Costs of a call: the documents and keys of indexes that the server examines for it, and its time."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from pymongo import MongoClient

from bench import report
from bench.place import Place

__all__ = ["Call", "measure_cost"]

RUNS = 5
LONG_SECONDS = 3.0
"""Seconds of a run from which on a call is made once only."""

Call = Callable[[], Any]


def measure_cost(here: Place, name: str, call: Call) -> dict[str, Any]:
    """Return the medians of some runs of a call: documents and keys that the server examines, and milliseconds.

    The server counts for all its clients: nothing else may be sent meanwhile.
    """
    milliseconds, documents, keys = list[float](), list[int](), list[int]()
    answer: Any = None
    while len(milliseconds) < RUNS:
        before, started = _examined(here.client), perf_counter()
        answer = call()
        milliseconds.append((perf_counter() - started) * 1000)
        after = _examined(here.client)
        documents.append(after[0] - before[0])
        keys.append(after[1] - before[1])
        if milliseconds[0] > LONG_SECONDS * 1000:
            break
    result = {
        "command": name,
        "runs": len(milliseconds),
        "documents_examined": int(median(documents)),
        "keys_examined": int(median(keys)),
        "ms": round(median(milliseconds), 1),
        "load": round(os.getloadavg()[0], 1),
        **(answer if isinstance(answer, dict) else {}),
    }
    report.progress(
        f"{name:60} {result['documents_examined']:>10,} documents {result['keys_examined']:>12,} keys "
        f"{result['ms']:>10,.1f} ms"
    )
    return result


def _examined(client: MongoClient[Any]) -> tuple[int, int]:
    """Return how many documents and keys of indexes the server has examined since its start."""
    executor = client.admin.command({"serverStatus": 1})["metrics"]["queryExecutor"]
    return executor["scannedObjects"], executor["scanned"]
