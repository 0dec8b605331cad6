"""The public face: exported names, errors that travel, two shells that are alike, and the types callers see."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq

ROOT = Path(__file__).parents[2]
ID = ObjectId()

ERRORS = [
    mongoq.ArgumentInvalid("delay", "cannot be negative"),
    mongoq.QueueNameInvalid("queue", "empty"),
    mongoq.QueueNotEmpty("orders", 3),
    mongoq.QueueUnknown("ordres", ["orders"], "app.mongoq"),
    mongoq.ScheduleUnknown("dialy", ["daily"], "app.mongoq"),
    mongoq.PayloadInvalid("payload.a", "bad", item=None),
    mongoq.PayloadTooLarge("payload", 5, 4),
    mongoq.PatchInvalid("patch", "bad"),
    mongoq.FilterInvalid("where.$or[0].a", "bad"),
    mongoq.DuplicateItem("orders", "k", ID),
    mongoq.BatchIncomplete("orders", [ID], {ObjectId(): mongoq.ReservationLost(ID, "orders")}),
    mongoq.ItemForeign(ID, "a/b", "c/d"),
    mongoq.ReservationLost(ID, "orders", held_by="h:1:a", held_until=datetime.now(UTC)),
    mongoq.ReservationLost(ID, "orders", certain=False),
    mongoq.CollectionSharded("app.mongoq"),
    mongoq.SchemaTooNew("app.mongoq", 3, 2, 1),
    mongoq.TransactionsUnavailable("mongomock"),
    mongoq.TransactionsUnavailable("mongomock", needed_by=["source 'rows'"]),
    mongoq.ServerUnavailable("start one"),
    mongoq.AuthenticationFailed("check user"),
    mongoq.GraphInvalid("flights", ["one", "two"]),
    mongoq.StageStopped("check", "raw", ID),
    mongoq.StageStopped("rows", "raw", None),
    mongoq.BrokerClosed(),
    mongoq.ConsumerBusy("etl", "h:1:a", datetime.now(UTC)),
    mongoq.EmbeddedServerUnavailable("install one"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_values_through_pickle(error: mongoq.MongoqError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(vars(again)) == repr(vars(error))  # errors within errors are equal to themselves alone


def test_the_tree_in_the_docstring_names_every_error() -> None:
    for error in ERRORS:
        assert type(error).__name__ in (mongoq.errors.__doc__ or "")


def test_everything_public_is_documented() -> None:
    for name in mongoq.__all__:
        value = getattr(mongoq, name)
        assert name == "__version__" or (inspect.getdoc(value) or "").strip(), name
    for shell in (mongoq.AsyncBroker, mongoq.AsyncQueue, mongoq.Broker, mongoq.Queue):
        for name, member in inspect.getmembers(shell):
            if not name.startswith("_"):
                assert inspect.getdoc(member), f"{shell.__name__}.{name}"


def test_both_shells_have_the_same_methods_and_parameters() -> None:
    for async_class, sync_class in [(mongoq.AsyncBroker, mongoq.Broker), (mongoq.AsyncQueue, mongoq.Queue)]:
        names = {name for name in dir(async_class) if not name.startswith("_")}
        assert names == {name for name in dir(sync_class) if not name.startswith("_")}
        for name in names:
            ours, theirs = inspect.getattr_static(async_class, name), inspect.getattr_static(sync_class, name)
            if inspect.isfunction(ours):
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_options_are_keyword_only() -> None:
    for name, member in inspect.getmembers(mongoq.Queue, inspect.isfunction):
        if name.startswith("_"):
            continue
        for parameter in inspect.signature(member).parameters.values():
            if parameter.default is not parameter.empty and (name, parameter.name) not in POSITIONAL:
                assert parameter.kind is parameter.KEYWORD_ONLY, f"{name}({parameter.name})"


POSITIONAL = {("peek", "n"), ("size", "state")}


CALLER = """
from datetime import timedelta
from pydantic import BaseModel
import mongoq

class Order(BaseModel):
    n: int

def use(broker: mongoq.Broker) -> None:
    typed = broker.queue("orders", model=Order, lease=timedelta(seconds=5), history=60)
    reveal_type(typed)
    item = typed.reserve(wait=5)
    reveal_type(item)
    if item is not None:
        reveal_type(item.payload)
        typed.move(item, "next", patch={"$set": {"a": 1}})
    reveal_type(broker.queue("orders").pop())
    with typed.reserved() as held:
        reveal_type(held)
    for kept in typed.history():
        reveal_type(kept.payload)

async def use_async(uri: str) -> None:
    async with mongoq.connect_async(uri) as broker:
        reveal_type(broker)
        async for kept in broker.queue("orders", model=Order).history():
            reveal_type(kept.payload)
    reveal_type(await mongoq.connect_async(uri))
"""

REVEALED = [
    "Queue[caller.Order]",
    "Item[caller.Order] | None",
    "caller.Order",
    "Item[Any] | None",
    "Item[caller.Order] | None",
    "caller.Order",
    "AsyncBroker",
    "caller.Order",
    "AsyncBroker",
]


@pytest.mark.prove
def test_callers_see_the_types_they_expect(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path), "caller.py"]
    run = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False
    )
    types = [line.split('"')[1] for line in run.stdout.splitlines() if "Revealed type" in line]
    assert [re.sub(r"mongoq\.[\w.]*\.", "", each) for each in types] == REVEALED, run.stdout + run.stderr
    assert "error" not in run.stdout


def test_the_core_imports_no_extra_and_what_few_programs_use_comes_later() -> None:
    code = (
        "import sys, mongoq; "
        "print([name for name in ('pyspark', 'motor', 'mongomock', 'pyarrow', 'pandas', 'rich', 'mongoq.embedded', "
        "'mongoq.spark', 'mongoq.pipeline', 'mongoq.worker') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    assert set(mongoq.__all__) <= set(dir(mongoq))
    with pytest.raises(AttributeError, match=r"^module 'mongoq' has no attribute 'Workers'$"):
        _ = mongoq.Workers  # type: ignore[attr-defined]


def test_values_given_by_callers_do_not_reach_reprs() -> None:
    secret: Any = mongoq.connect_async("mongodb://me:hunter2@localhost")
    assert "hunter2" not in repr(secret)
