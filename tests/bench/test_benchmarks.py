"""The benchmarks, in small: that each still runs as a user runs it, on a private server, and writes a result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 500

BENCHMARKS = {
    "core": "--rounds 2 --calls 3 --depth 1000 --depth-rounds 2 --batch 5 --batch-rounds 2 --replay 501 "
    "--replay-rounds 2 --stats-rounds 2",
    "group-commit": "--no-keuss --threads --callers 8 --seconds 0.2 --rounds 1",
    "contention": "--processes 1 --processes 2 --items 40 --batch 5 --batches 8",
    "churn": "--seconds 2 --window 1 --plain-seconds 1 --history on",
    "latency": "--rounds 3 --rest 0.01 --queues 5 --idle 1",
    "workers": "--items 600 --rounds 1 --memory-items 2000 --no-peers",
    "telemetry": "--items 200 --waiting-items 50 --rounds 1",
    "pipelines": "--items 300 --rounds 1",
    "exactly-once": "--items 300 --rounds 1",
    "sequences": f"--sequences 20 --items 3 --hot 30 --rounds 2 --before {ROOT} --plain-seconds 0.5",
    "commands": "--items 2000 --waiting 2000",
    "pages": "--items 2000 --queues 5 --letters 200 --seconds 8",
}
SPARK = {
    "spark": "--read=1000 --write=1000 --stream=500 --hops=100 --frames=500 --rounds=1",
    "spark-memory": "--items 1000 2000",
    "spark-frames": "--items 3 20 --partitions 2 --rounds 1",
}

pytestmark = [pytest.mark.bench, pytest.mark.prove, pytest.mark.timeout(600)]


def run(name: str, options: str, out: Path) -> dict[str, Any]:
    """Run a benchmark, and return the result that it writes into a file."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, *options.split(), "--out", str(out)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    assert result["benchmark"] == name
    return result


def different_commands(measured: Any) -> list[Any]:
    """Return what does not send the same commands as the bare driver beside it, wherever it stands in a result."""
    parts = measured.values() if isinstance(measured, dict) else measured if isinstance(measured, list) else ()
    own = [measured] if isinstance(measured, dict) and measured.get("same_commands") is False else []
    return own + [each for part in parts for each in different_commands(part)]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_runs_and_the_bare_driver_beside_it_sends_the_same_commands(name: str, tmp_path: Path) -> None:
    assert different_commands(run(name, BENCHMARKS[name], tmp_path / "result.json")) == []


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("name", SPARK)
def test_those_of_spark_run(name: str, tmp_path: Path) -> None:
    run(name, SPARK[name], tmp_path / "result.json")
