"""Spark finds the format in an installed wheel, with nobody registering it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import mongoq, pyspark_mongoq
from pyspark.sql import SparkSession

uri, events = sys.argv[1:]
assert mongoq.__file__.startswith(sys.argv[0].rsplit("/", 1)[0]), mongoq.__file__
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.dir", events)
    .config("spark.eventLog.compress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("DEBUG")
options = {"uri": uri, "database": "app", "queue": "orders"}
frame = spark.read.format("mongoq").options(**options).schema("n int, _q string").load()
frame.explain(mode="extended")
print("rows:", [tuple(row) for row in frame.collect()])
place = {"uri": uri, "database": "app"}
frame.write.format("mongoq").options(**place, to="copies").mode("append").save()
stream = spark.readStream.schema("n int").json(events + "/../stream")
query = stream.writeStream.format("mongoq").options(**place, to="copies", checkpointLocation=events + "/../checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
print("copies:", spark.read.format("mongoq").options(**place, queue="copies").schema("n int").load().count())
try:
    spark.read.format("mongoq").options(**options, view="past").load()
except Exception as error:
    print("said:", error)
spark.stop()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked as an installer would."""
    build, site = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(build), str(ROOT)]
    completed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (wheel,) = build.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.mark.prove
def test_spark_finds_the_format_in_the_wheel_and_its_logs_show_no_credentials(
    installed: Path, auth_server: Any, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    assert (installed / "pyspark_mongoq.py").exists()
    with MongoClient[dict[str, Any]](auth_server.uri, tz_aware=True) as client:
        client.app.drop_collection("mongoq")  # another test may have used this server
        when = client.admin.command("hello")["localTime"]
        client.app.mongoq.insert_one({"q": "orders", "payload": {"n": 7}, "when": when})
    script, events = installed / "script.py", tmp_path / "events"
    script.write_text(SCRIPT)
    events.mkdir()
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "rows.json").write_text('{"n": 8}')
    environment = os.environ | spark_environment | {"PYTHONPATH": str(installed)}
    completed = subprocess.run(
        [sys.executable, str(script), auth_server.uri, str(events)],
        check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-5000:]
    assert "rows: [(7, 'orders')]" in completed.stdout
    assert "copies: 2" in completed.stdout
    assert "view: one of live, ready, scheduled, reserved, expired, history, dead, all, not 'past'" in completed.stdout
    logs = [path.read_text() for path in events.rglob("*") if path.is_file()]
    assert any("SparkListenerJobStart" in log for log in logs)
    assert " DEBUG " in completed.stderr
    for secret in ("analyst", "s3cret-p4ss"):
        assert secret not in completed.stdout + completed.stderr + "".join(logs)
