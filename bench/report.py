"""Results as JSON: the machine, the numbers, and whether a target was reached."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import mongoq
from bench.measure import Block, Spread

__all__ = ["latency", "machine", "progress", "spread", "write"]

WINDOW = "minSnapshotHistoryWindowInSeconds"


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(result: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(result, indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)


def machine(client: MongoClient[Any], **facts: Any) -> dict[str, Any]:
    """Return the facts on which the figures depend."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pymongo": pymongo.version,
        "pymongo_c_extensions": pymongo.has_c(),
        "mongoq": mongoq.__version__,
        "mongod": client.server_info()["version"],
        "history_window_seconds": _parameter(client, WINDOW),
        **facts,
    }


def _parameter(client: MongoClient[Any], name: str) -> Any:
    """Return a server parameter, or ``None`` without the right to read it."""
    try:
        return client.admin.command({"getParameter": 1, name: 1})[name]
    except OperationFailure:
        return None


def latency(blocks: Sequence[Block]) -> dict[str, float]:
    """Return the time of one call over all blocks, the rate, and the client's share of the time."""
    micros = [time / 1000 for block in blocks for time in block.times]
    return {
        "rate": round(1_000_000 / statistics.fmean(micros), 1),
        "median_us": round(statistics.median(micros), 1),
        "processor_us": round(sum(block.processor for block in blocks) / 1000 / len(micros), 1),
        "p95_us": round(statistics.quantiles(micros, n=20)[-1] if len(micros) > 1 else micros[0], 1),
    }


def spread(values: Spread) -> dict[str, float]:
    return {
        "median": round(values.median, 3),
        "quartile_low": round(values.low, 3),
        "quartile_high": round(values.high, 3),
        "error": round(values.error, 3),
    }
