"""What is missing is said in a sentence before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

import mongoq.spark
from mongoq.spark import SparkUnavailable, check


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, no JAVA_HOME, no session, and a Python for Spark that has all."""
    monkeypatch.setattr("pyspark.core.context.SparkContext._active_spark_context", None)
    monkeypatch.setattr(mongoq.spark, "find_problem", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def put(folder: Path, output: str, *, status: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "java"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' '{output}' >&2\nexit {status}\n")
    script.chmod(0o755)


OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment (build 1)'


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea"])
def test_a_java_of_seventeen_or_later_will_do(java: Path, version: str) -> None:
    put(java, OPENJDK.format(version))
    check()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_452", "8"), ("11.0.27", "11"), ("16", "16")])
def test_an_old_java_is_named(java: Path, version: str, major: str) -> None:
    put(java, OPENJDK.format(version))
    with pytest.raises(
        SparkUnavailable, match=f"^Java {major} is too old for Spark: install Java 17 or later"
    ) as caught:
        check()
    assert caught.value.missing == "Java"


@pytest.mark.parametrize("output", [None, "Unable to locate a Java Runtime."])
def test_no_java_is_said(java: Path, output: str | None) -> None:
    if output:
        put(java, output, status=1)
    with pytest.raises(SparkUnavailable, match=r"^Java is not installed, or does not run: install Java 17 .*JAVA_HOME"):
        check()


def test_the_java_of_java_home_comes_first(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(java, OPENJDK.format("21"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(SparkUnavailable, match="^Java is not installed"):
        check()
    put(tmp_path / "home" / "bin", OPENJDK.format("11"))
    with pytest.raises(SparkUnavailable, match="^Java 11 is too old"):
        check()


@pytest.mark.prove
def test_the_java_that_the_tests_run_on_will_do(spark: object) -> None:
    check()


@pytest.mark.parametrize("release", ["4.1.1", "3.5.0", "4.0.0.dev1"])
def test_an_old_pyspark_is_named(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(mongoq.spark, "version", lambda _package: release)
    with pytest.raises(SparkUnavailable, match=f"^pyspark {release} is too old, mongoq needs 4.2 or later: install"):
        check()


@pytest.mark.parametrize("release", ["4.2.0", "4.2.0.dev4", "4.10.0", "5.0.0"])
def test_later_ones_are_taken(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(mongoq.spark, "version", lambda _package: release)
    monkeypatch.setattr(mongoq.spark, "find_problem", lambda _: None)
    check()


def test_a_pyspark_that_is_only_on_the_search_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(package: str) -> str:
        raise mongoq.spark.PackageNotFoundError(package)

    monkeypatch.setattr(mongoq.spark, "version", unknown)
    check()


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_packages_come_first(java: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(mongoq.spark, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(SparkUnavailable, match=f"^{package} is not installed: install the extra"):
        check()
