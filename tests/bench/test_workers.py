"""The benchmark of workers, in small and without other queues: that it still runs, and what its result looks like."""

from typing import Any

import pytest

from bench.burn_down import SUBJECTS
from tests.bench.running import ran

SMALL = ["--items", "600", "--rounds", "1", "--memory-items", "2000", "--no-peers"]

# one run of the benchmark serves all tests, in one process
pytestmark = [pytest.mark.bench, pytest.mark.prove, pytest.mark.xdist_group("bench workers")]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the benchmark as a user does, on a private server."""
    out = tmp_path_factory.mktemp("bench") / "workers.json"
    return ran(out, "workers", *SMALL)


def test_every_worker_empties_a_queue_beside_the_bare_loop(result: dict[str, Any]) -> None:
    ways = result["burn_down"]["ways"]
    assert list(ways) == [subject.title for subject in SUBJECTS]
    assert ways["bare"]["ratio"] == 1
    for each in ways.values():
        assert each["left"] == 0
        assert each["per_second"] > 0
    for title in ("threads", "asyncio"):
        assert ways[f"{title}, 2 processes"]["times_one_process"] > 0
    assert set(result["missed"]) <= {*ways, "memory, threads", "memory, asyncio"}


def test_the_memory_of_a_worker_is_sampled(result: dict[str, Any]) -> None:
    for each in result["memory"].values():
        assert each["samples"] > 0
        assert 10 < each["before_mib"] <= each["peak_mib"]


def test_other_queues_are_left_out(result: dict[str, Any]) -> None:
    assert result["peers"] is None
