"""Credentials travel to the tasks and are shown nowhere. Logs are looked at in ``test_discovery``."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from pymongo import MongoClient

SECRETS = ("analyst", "s3cret-p4ss")


def hidden(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


@pytest.fixture
def queue(auth_server: Any, store: Any) -> Any:
    """An item of the store on the server with credentials."""
    with MongoClient[dict[str, Any]](auth_server.uri) as client:
        collection = client.get_database(store.collection.database.name).get_collection(store.collection.name)
        collection.insert_one({"q": "orders", "payload": {"n": "text"}, "when": store.now})
        yield collection
        collection.drop()


def test_plans_show_no_credentials(queue: Any, auth_server: Any, load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = load("n string", uri=auth_server.uri)
    assert [row.n for row in frame.collect()] == ["text"]
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    output = capsys.readouterr().out
    assert "mongoq" in output
    assert hidden(output)
    assert hidden(repr(frame))
    assert hidden(frame._jdf.queryExecution().toString())


def test_plans_of_sql_show_no_credentials(queue: Any, auth_server: Any, store: Any, spark: Any) -> None:
    options = store.options(uri=auth_server.uri)
    pairs = ", ".join(f"{name} '{value}'" for name, value in options.items())
    statement = f"CREATE OR REPLACE TEMPORARY VIEW secrets (n string) USING mongoq OPTIONS ({pairs})"
    [[plans]] = spark.sql(f"EXPLAIN EXTENDED {statement}").collect()
    assert "CreateTempViewUsing" in plans
    assert hidden(plans)
    created = spark.sql(statement)
    assert hidden(created._jdf.queryExecution().toString())
    assert [row.n for row in spark.sql("SELECT n FROM secrets").collect()] == ["text"]
    spark.catalog.dropTempView("secrets")


def test_a_failing_task_shows_no_credentials(queue: Any, auth_server: Any, load: Any) -> None:
    with pytest.raises(Exception, match="column 'n' of type int cannot hold a string") as caught:
        load("n int", uri=auth_server.uri).collect()
    assert hidden("".join(traceback.format_exception(caught.value)))


UNUSABLE = [
    "mongodb://analyst:s3cret-p4ss@127.0.0.1:1/?serverSelectionTimeoutMS=100",
    "mongodb://analyst:s3cret-p4ss@127.0.0.1:port/",
    "mongodb://analyst:s3cret-p4ss:more@127.0.0.1/",
    "mongodb://analyst:s3cret-p4ss/more@127.0.0.1/",
    "mongodb://analyst:s3cret-p4ss@more@127.0.0.1/",
    "mongodb://analyst:s3cret-p4ss@127.0.0.1/?directConnection=maybe&replicaSet=&serverSelectionTimeoutMS=100",
    "mongodb://analyst:s3cret-p4ss@/",
    "mongodb+srv://analyst:s3cret-p4ss@localhost/",
    "mongodb+srv://analyst:s3cret-p4ss@nowhere.invalid.example:5/",
    "mongo://analyst:s3cret-p4ss@127.0.0.1/",
    "analyst:s3cret-p4ss@127.0.0.1",
    "mongodb://127.0.0.1/?authMechanism=analyst&authSource=s3cret-p4ss&serverSelectionTimeoutMS=100",
]


@pytest.mark.filterwarnings("ignore::UserWarning:pymongo")
def test_errors_of_planning_show_no_credentials(reader: Any) -> None:
    for uri in UNUSABLE:
        with pytest.raises(Exception) as caught:
            reader("n int", uri=uri, database="app").partitions()
        assert hidden("".join(traceback.format_exception(caught.value)))
