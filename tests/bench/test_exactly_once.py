"""The benchmark of forks, joins and sources, in small: that it still runs, and what its result looks like."""

from pathlib import Path

import pytest

from bench.exactly_once import WAYS
from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_every_shape_stands_beside_moves_or_inserts(tmp_path: Path) -> None:
    out = tmp_path / "exactly-once.json"
    result = ran(out, "exactly-once", "--items", "300", "--rounds", "1")
    shapes = result["shapes"]
    assert list(shapes) == list(WAYS)
    assert shapes["move"]["moves"] == shapes["inserts"]["to_inserts"] == 1
    assert all(shape["per_second"] > 0 for shape in shapes.values())
    assert set(result["missed"]) <= {"fork", "join", "source"}
