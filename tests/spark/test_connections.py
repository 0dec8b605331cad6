"""A program that takes its connection from the environment: what Spark writes down of it, by DataFrames and by SQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

SCRIPT = """
import sys
import mongoq.spark
from pyspark.sql import SparkSession

uri, events, warehouse = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.dir", events)
    .config("spark.eventLog.compress", "false")
    .config("spark.sql.warehouse.dir", warehouse)
    .getOrCreate()
)
mongoq.spark.check()
mongoq.spark.register(spark)
view = "CREATE TEMPORARY VIEW {} (n int) USING mongoq OPTIONS (queue 'orders'{})"
spark.sql(view.format("by_variable", ""))
given = f", uri '{uri}', database 'app'"
spark.sql(view.format("by_option", given))
spark.sql("EXPLAIN EXTENDED " + view.format("explained", given)).show(truncate=False)
for name in ("by_variable", "by_option"):
    print(name, [row.n for row in spark.sql(f"SELECT n FROM {name}").collect()])
    spark.sql(f"SELECT n FROM {name}").explain(mode="extended")
spark.table("by_variable").write.format("mongoq").mode("append").save("copies")
print("copies", [row.n for row in spark.read.format("mongoq").schema("n int").load("copies").collect()])
spark.stop()
"""


@pytest.mark.prove
@pytest.mark.timeout(1_000)
def test_a_connection_of_the_environment_serves_sql_and_neither_log_nor_plan_shows_a_password(
    auth_server: Any, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    with MongoClient[dict[str, Any]](auth_server.uri, tz_aware=True) as client:
        client.app.drop_collection("mongoq")
        when = client.admin.command("hello")["localTime"]
        client.app.mongoq.insert_one({"q": "orders", "payload": {"n": 7}, "when": when})
    script, events = tmp_path / "script.py", tmp_path / "events"
    script.write_text(SCRIPT)
    events.mkdir()
    connection = {"MONGOQ_URI": auth_server.uri, "MONGOQ_DATABASE": "app"}
    completed = subprocess.run(
        [sys.executable, str(script), auth_server.uri, str(events), str(tmp_path / "warehouse")],
        check=False, cwd=tmp_path, env=os.environ | spark_environment | connection,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-5000:]
    for line in ("by_variable [7]", "by_option [7]", "copies [7]"):
        assert line in completed.stdout
    logs = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "CreateTempViewUsing" in logs
    assert "CreateTempViewUsing" in completed.stdout
    for secret in ("analyst", "s3cret-p4ss"):
        assert secret not in completed.stdout + completed.stderr + logs
