"""The benchmark of wake-ups, in small: that it still runs, and what its result looks like."""

from pathlib import Path

import pytest

from bench.pickup import WAYS
from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_every_way_stands_beside_the_bare_loop(tmp_path: Path) -> None:
    out = tmp_path / "latency.json"
    sizes = ["--rounds", "3", "--rest", "0.01", "--queues", "5", "--idle", "1"]
    result = ran(out, "latency", *sizes)
    assert list(result["pickup"]) == list(WAYS)
    for latency in result["pickup"].values():
        assert 0 < latency["median_ms"] <= latency["p90_ms"] <= latency["p99_ms"]
    assert result["pickup"]["bare"]["ratio"] == 1
    assert result["idle"]["queues"] == 5
    assert isinstance(result["missed"], list)
