"""The benchmarks of contention and churn, in small: that they still run, and what their results look like."""

from pathlib import Path

import pytest

from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_contention_stands_beside_bare_claims(tmp_path: Path) -> None:
    sizes = ["--processes", "1", "--processes", "2", "--items", "40", "--batch", "5", "--batches", "8"]
    result = ran(tmp_path / "contention.json", "contention", *sizes)
    assert list(result["modes"]) == ["single", "batch"]
    for mode in result["modes"].values():
        assert list(mode["ways"]) == ["mongoq", "head of the queue, bare"]
        for measurements in mode["ways"].values():
            assert [each["processes"] for each in measurements] == [1, 2]
            for each in measurements:
                assert (each["items"], each["left"]) == (40, 0)
                assert 0 < each["claimed_of_tried"] <= 1
                assert 0 <= each["least_of_mean"] <= 1
                assert each["items_per_second"] > 0
            alone = measurements[0]
            assert (alone["claimed_of_tried"], alone["least_of_mean"], alone["beside_the_first"]) == (1, 1, 1)


def test_churn_is_reported_by_windows(tmp_path: Path) -> None:
    result = ran(
        tmp_path / "churn.json", "churn", "--seconds", "2", "--window", "1", "--plain-seconds", "1", "--history", "on"
    )
    assert result["machine"]["history_window_seconds"] == 300
    runs = [(each["history"], each["claims"], len(each["windows"])) for each in result["runs"]]
    assert runs == [(True, "mongoq", 2), (True, "plain", 1)]
    for run in result["runs"]:
        for window in run["windows"]:
            assert window["items_per_second"] > 0
            assert 0 < window["reserve"]["median_ms"] <= window["reserve"]["p99_ms"]
        ratios = run["last_beside_first"]
        assert {"reserve", "reserve_beside_quiet", "empty", "throughput"} <= ratios.keys()
        assert run["reached"].keys() == {"reserve", "empty", "throughput"}
    assert isinstance(result["missed"], list)
