"""The benchmark of pipelines, in small: that it still runs, and what its result looks like."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.pipelines import SUBJECTS

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.bench, pytest.mark.slow]


def test_every_way_takes_all_items_to_the_end(tmp_path: Path) -> None:
    out = tmp_path / "pipelines.json"
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "pipelines", "--items", "300", "--rounds", "1", "--out", str(out)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    ways = result["ways"]
    assert list(ways) == [subject.title for subject in SUBJECTS]
    assert ways["bare"]["ratio"] == 1
    assert all(way["left"] == 0 and way["per_second"] > 0 for way in ways.values())
    assert set(result["missed"]) <= set(ways)
