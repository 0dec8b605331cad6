"""The benchmark of forks, joins and sources, in small: that it still runs, and what its result looks like."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.exactly_once import WAYS

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.bench, pytest.mark.slow]


def test_every_shape_stands_beside_moves_or_inserts(tmp_path: Path) -> None:
    out = tmp_path / "exactly-once.json"
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "exactly-once", "--items", "300", "--rounds", "1", "--out", str(out)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    shapes = result["shapes"]
    assert list(shapes) == list(WAYS)
    assert shapes["move"]["moves"] == shapes["inserts"]["to_inserts"] == 1
    assert all(shape["per_second"] > 0 for shape in shapes.values())
    assert set(result["missed"]) <= {"fork", "join", "source"}
