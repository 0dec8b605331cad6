"""What is missing is said in a sentence before Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mongoq.spark import SparkUnavailable, check


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, no JAVA_HOME, no session, and a Python for Spark that has all."""
    # the session of other tests in this process; Spark has no other way to hide it
    monkeypatch.setattr("pyspark.core.context.SparkContext._active_spark_context", None)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def put(folder: Path, output: str, *, status: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "java"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' '{output}' >&2\nexit {status}\n")
    script.chmod(0o755)


OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment (build 1)'


def test_a_java_of_seventeen_or_later_will_do_and_an_old_one_is_named(java: Path) -> None:
    for version in ("17", "17.0.15", "21.0.1", "25-ea"):
        put(java, OPENJDK.format(version))
        check()
    for version, major in (("1.8.0_452", "8"), ("11.0.27", "11")):
        put(java, OPENJDK.format(version))
        with pytest.raises(
            SparkUnavailable, match=f"^Java {major} is too old for Spark: install Java 17 or later"
        ) as caught:
            check()
        assert caught.value.missing == "Java"


def test_no_java_is_said(java: Path) -> None:
    problem = r"^Java is not installed, or does not run: install Java 17 .*JAVA_HOME"
    with pytest.raises(SparkUnavailable, match=problem):
        check()
    put(java, "Unable to locate a Java Runtime.", status=1)
    with pytest.raises(SparkUnavailable, match=problem):
        check()


def test_the_java_of_java_home_comes_first(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(java, OPENJDK.format("21"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(SparkUnavailable, match="^Java is not installed"):
        check()
    put(tmp_path / "home" / "bin", OPENJDK.format("11"))
    with pytest.raises(SparkUnavailable, match="^Java 11 is too old"):
        check()
