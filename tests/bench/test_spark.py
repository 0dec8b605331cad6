"""The benchmarks of Spark, in small: that they still run, and what their results look like."""

from pathlib import Path

import pytest

from bench.spark import LEAST
from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove, pytest.mark.spark]


@pytest.mark.long
def test_every_way_stands_beside_the_bare_driver(tmp_path: Path) -> None:
    sizes = ["--read=1000", "--write=1000", "--stream=500", "--hops=100", "--frames=500", "--rounds=1"]
    result = ran(tmp_path / "spark.json", "spark", *sizes)
    assert list(result["ways"]) == list(LEAST)
    for name, way in result["ways"].items():
        assert way["ratio"] > 0
        assert way["spark_per_second"][0] > 0
        assert way["threads_per_second" if name in ("hops", "frames") else "bare_per_second"][0] > 0
    assert set(result["missed"]) <= set(LEAST)


@pytest.mark.long
def test_the_memory_of_each_kind_of_process_is_reported(tmp_path: Path) -> None:
    result = ran(tmp_path / "memory.json", "spark-memory", "--items", "1000", "2000")
    assert list(result["peak_mib"]) == ["1000", "2000"]
    assert all(size > 20 for peak in result["peak_mib"].values() for size in peak.values())


def test_the_time_of_frames_is_reported(tmp_path: Path) -> None:
    sizes = ["--items", "3", "20", "--partitions", "2", "--rounds", "1"]
    result = ran(tmp_path / "frames.json", "spark-frames", *sizes)
    assert [(row["partitions"], row["joined"]) for row in result["frames"]] == [(2, False), (2, True)]
    assert all(seconds > 0 for row in result["frames"] for seconds in row["median_seconds"].values())
