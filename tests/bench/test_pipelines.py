"""The benchmark of pipelines, in small: that it still runs, and what its result looks like."""

from pathlib import Path

import pytest

from bench.pipelines import SUBJECTS
from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_every_way_takes_all_items_to_the_end(tmp_path: Path) -> None:
    out = tmp_path / "pipelines.json"
    result = ran(out, "pipelines", "--items", "300", "--rounds", "1")
    ways = result["ways"]
    assert list(ways) == [subject.title for subject in SUBJECTS]
    assert ways["bare"]["ratio"] == 1
    assert all(way["left"] == 0 and way["per_second"] > 0 for way in ways.values())
    assert set(result["missed"]) <= set(ways)
