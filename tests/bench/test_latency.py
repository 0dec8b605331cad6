"""The benchmark of wake-ups, in small: that it still runs, and what its result looks like."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.pickup import WAYS

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.bench, pytest.mark.slow]


def test_every_way_stands_beside_the_bare_loop(tmp_path: Path) -> None:
    out = tmp_path / "latency.json"
    sizes = ["--rounds", "3", "--rest", "0.01", "--queues", "5", "--idle", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "latency", *sizes, "--out", str(out)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(out.read_text())
    assert result["benchmark"] == "latency"
    assert list(result["pickup"]) == list(WAYS)
    for told in result["pickup"].values():
        assert 0 < told["median_ms"] <= told["p90_ms"] <= told["p99_ms"]
    assert result["pickup"]["bare"]["ratio"] == 1
    assert result["idle"]["queues"] == 5
    assert isinstance(result["missed"], list)
