"""Each use of Spark with the PySpark that it needs, and the sentence that refuses it with an older one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import mongoq
from mongoq.spark import SparkUnavailable, check, register
from tests.spark.ddl import schema_of

ROOT = Path(__file__).parents[2]
NEWEST = version("pyspark")
OLDEST = {
    "stages": ("running pipelines", "3.5"),
    "register": ('format("mongoq")', "4.0"),
    "write": ("writing tables", "4.0"),
    "read": ("reading tables", "4.0"),
    "read_filtered": ("the option pushdown", "4.1"),
    "write_stream": ("writing streams", "4.1"),
    "read_stream": ("reading streams", "4.2"),
    "frame_stage": ("running frame stages", "4.2"),
}
"""By the method of ``uses.py``: its name in errors, and the first PySpark for it."""


@pytest.mark.parametrize(
    "use, before",
    [
        ("stages", "3.4.4"),
        ("register", "3.5.9"),
        ("read_filtered", "4.0.5"),
        ("write_stream", "4.0.5"),
        ("read_stream", "4.1.4"),
        ("frame_stage", "4.1.4"),
    ],
)
def test_a_use_that_pyspark_is_too_old_for_is_refused_by_name(
    use: str, before: str, monkeypatch: pytest.MonkeyPatch, store: Any
) -> None:
    from pyspark_mongoq import DefaultSource

    schema, pipeline = schema_of("n int"), mongoq.Pipeline("framed", errors="errors", outputs="out")
    pipeline.frame_stage("in", to="out", name="frames")(lambda frame: frame)
    attempts = {
        "stages": check,
        "register": lambda: register(None),  # type: ignore[arg-type]
        "read_filtered": lambda: DefaultSource(store.options(pushdown="true")).reader(schema),
        "write_stream": lambda: DefaultSource(store.options(queue=None, to="out")).streamWriter(schema, False),
        "read_stream": lambda: DefaultSource(store.options(consumer="etl")).streamReader(schema),
        "frame_stage": lambda: pipeline.run_on_spark(None, store.uri),  # type: ignore[arg-type]
    }
    monkeypatch.setattr("pyspark.__version__", before)
    name, needed = OLDEST[use]
    with pytest.raises(SparkUnavailable) as caught:
        attempts[use]()
    assert str(caught.value).startswith(f"{name} needs PySpark {needed}, this is {before}: install a later one (pip")


@pytest.mark.prove
@pytest.mark.timeout(900)  # the first run installs the version
@pytest.mark.xdist_group("spark_versions")  # one JVM after the other
@pytest.mark.parametrize("pyspark", ["3.5.9", "4.0.5", "4.1.4", "4.2.0", NEWEST])
def test_each_use_works_from_its_pyspark_on(
    pyspark: str, uri: str, database: str, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    if pyspark.startswith("3.") and sys.version_info >= (3, 13):
        pytest.skip("PySpark 3.5 runs on Python 3.12 at most")
    path = [str(ROOT)] if pyspark == NEWEST else [str(installed(pyspark)), str(ROOT)]
    environment = {**os.environ, **spark_environment, "PYTHONPATH": os.pathsep.join(path)}
    environment.pop("SPARK_HOME", None)
    command = [sys.executable, str(ROOT / "tests/spark/uses.py"), uri, database, str(tmp_path)]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    came = json.loads(ended.stdout.splitlines()[-1])
    assert came.pop("version") == pyspark
    assert came.keys() == OLDEST.keys()
    for use, result in came.items():
        name, needed = OLDEST[use]
        if numbers(pyspark) >= numbers(needed):
            assert result is True, (use, result)
        elif pyspark.startswith("3.") and use not in ("register", "frame_stage"):
            assert "DATA_SOURCE_NOT_FOUND" in result  # Spark's own: it does not ask for formats in Python
        else:
            assert f"{name} needs PySpark {needed}, this is {pyspark}: " in result


def installed(pyspark: str) -> Path:
    """Return the folder of a PySpark with nothing else; installed there, once for a checkout."""
    folder = ROOT / "build" / f"pyspark-{pyspark}"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.part")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(unfinished)]
        subprocess.run([*pip, f"pyspark=={pyspark}"], check=True)
        unfinished.rename(folder)
    return folder


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
