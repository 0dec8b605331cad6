"""The benchmark of telemetry, in small: that it still runs, and what its result looks like."""

from typing import Any

import pytest

from bench.telemetry import WAYS
from tests.bench.running import ran

SMALL = ["--items", "200", "--waiting-items", "50", "--rounds", "1"]

# one run of the benchmark serves all tests, in one process
pytestmark = [pytest.mark.bench, pytest.mark.prove, pytest.mark.xdist_group("bench telemetry")]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the benchmark as a user does, on a private server."""
    out = tmp_path_factory.mktemp("bench") / "telemetry.json"
    return ran(out, "telemetry", *SMALL)


def test_all_ways_are_measured_for_each_worker(result: dict[str, Any]) -> None:
    assert len(result["workers"]) == 4
    for ways in result["workers"].values():
        assert list(ways) == list(WAYS)
        for each in ways.values():
            assert each["per_second"]["median"] > 0
            assert each["processor_us"]["median"] > 0
        assert ways["off"]["processor_ratio"]["median"] == 1


def test_an_sdk_makes_more_calls_than_none(result: dict[str, Any]) -> None:
    # Where handlers wait, a worker looks for more items again and again: those calls are counted too.
    empty = [ways for title, ways in result["workers"].items() if title.endswith("nothing")]
    assert len(empty) == 2
    for ways in empty:
        calls = {way: min(each["calls"]) for way, each in ways.items()}
        # The ways without an SDK lie close together, and so few items come in more claims now and then.
        assert calls["SDK in memory"] > 1.5 * max(calls["no SDK"], calls["no SDK, a context variable"]) > 0
