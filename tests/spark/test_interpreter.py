"""``check`` asks the Python that Spark runs, which need not be the one that runs the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mongoq.spark import SparkUnavailable, check

HINT = "set the environment variable PYSPARK_PYTHON to a Python with mongoq-driver"


@pytest.fixture(autouse=True)
def no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session has chosen yet, and nothing of this tree is found by where the program runs."""
    monkeypatch.setattr("pyspark.core.context.SparkContext._active_spark_context", None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without mongoq."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python3"


def test_the_first_python_on_the_path_has_to_have_mongoq(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{bare.parent}:/usr/bin:/bin")
    problem = r"^'python3' is the Python that Spark runs, and it cannot import .*No module named 'mongoq'"
    with pytest.raises(SparkUnavailable, match=f"{problem}: {HINT}") as caught:
        check()
    assert caught.value.missing == "'python3'"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    check()


def test_the_python_of_the_variable_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    with pytest.raises(SparkUnavailable, match=f"{bare}' is the Python that Spark runs, .*'mongoq': {HINT}"):
        check()


def test_the_python_of_a_session_is_the_one_that_it_has_chosen(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        pythonExec = str(bare)  # noqa: N815  # Spark's name

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr("pyspark.core.context.SparkContext._active_spark_context", Context)
    with pytest.raises(SparkUnavailable, match=f"{bare}' is the Python that Spark runs"):
        check()


def test_a_python_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/bin/python")
    with pytest.raises(SparkUnavailable, match=f"^'./env/bin/python' .* Spark runs, and it is not there: {HINT}"):
        check()


def test_a_python_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho 3.2\n")
    interpreter.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(SparkUnavailable, match=f"it is Python 3.2, and the driver is {own}: Spark wants the same"):
        check()
