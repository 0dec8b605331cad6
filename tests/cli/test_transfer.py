"""Commands ``export`` and ``import``: an import equals what was exported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

import mongoq
from tests.cli.conftest import AtCommand, Read, Run
from tests.waiting import until

Queue = mongoq.Queue[Any]

OPTIONS: Any = CodecOptions(uuid_representation=UuidRepresentation.STANDARD, tz_aware=True)
PAYLOADS: list[Any] = [
    None,
    0,
    "",
    [],
    {},
    -1.5,
    float("nan"),
    float("inf"),
    -0.0,
    2**40,
    Int64(7),
    True,
    "\0 \u2028 \x1b[31m ü 😀",
    b"\x00\xff",
    Binary(b"x", 128),
    UUID(int=7),
    ObjectId("65f0c0ffee65f0c0ffee0001"),
    Decimal128("1.10"),
    datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    Regex("^a", "i"),
    Code("x"),
    Timestamp(1, 2),
    MinKey(),
    MaxKey(),
    {"$set": {"a.b": "$$NOW"}, "": 1},
    # Keys that mean something else in extended JSON.
    {"$oid": "65f0c0ffee65f0c0ffee0001"},
    {"$date": {"$numberLong": "1"}},
    {"a": [{"$numberInt": "1"}]},
    {"$regex": "a", "$options": "i"},
    {"bson": b"x"},
]


def fill(queue: Queue) -> None:
    """Push items of all kinds."""
    for payload in PAYLOADS:
        queue.push(payload)
    headers = {"tenant": "acme", "at": datetime(2026, 1, 1, tzinfo=UTC), "$oid": "x"}
    queue.push("late", when=datetime(2030, 1, 1, tzinfo=UTC), priority=-7, headers=headers)
    queue.push("keyed", key="k", priority=100)
    queue.push("remembered", id=ObjectId())
    queue.push("tried", priority=-99)
    queue.rollback(queue.reserve() or pytest.fail("nothing"), error=ValueError("bad"))
    queue.push("held", priority=-100)
    queue.reserve()


@pytest.fixture
def orders(broker: mongoq.Broker) -> Queue:
    return broker.queue("orders")


def export(run: Run, *arguments: str) -> str:
    result = run("export", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_an_import_equals_what_was_exported(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    fill(orders)
    before = [item.payload for item in orders.history(state=None)]
    exported = export(run, "orders")
    assert exported.isascii()
    assert len(exported.splitlines()) == len(PAYLOADS) + 5 == orders.size()
    broker.drop_queue("orders", force=True)
    result = run("import", "orders", input=exported)
    assert result.stdout == f"imported {len(before)} items into orders, a new queue in {broker.namespace}\n"
    assert export(run, "orders") == exported
    after = [item.payload for item in orders.history(state=None)]
    encoded = [
        [bson.encode({"": payload}, codec_options=OPTIONS) for payload in payloads] for payloads in (before, after)
    ]
    assert encoded[0] == encoded[1]
    assert orders.counts().reserved == 0
    tried = next(item for item in orders.history(state=None) if item.payload == "tried")
    assert (tried.attempts, tried.error and tried.error.type) == (1, "ValueError")


def test_the_same_file_twice_is_imported_once(run: Run, read: Read, orders: Queue, tmp_path: Path) -> None:
    orders.push_many(range(3))
    path = tmp_path / "orders.jsonl"
    assert run("export", "orders", "--output", str(path)).exit_code == 0
    assert read("import", "orders", str(path))[0] == {
        "queue": "orders",
        "pushed": 0,
        "already": 3,
        "refused": 0,
        "refusals": [],
    }
    orders.purge()
    assert read("import", "orders", str(path))[0]["pushed"] == 3
    # Settled items are remembered: the import still adds nothing.
    while item := orders.reserve():
        orders.commit(item)
    (again,) = read("import", "orders", str(path))
    assert (again["pushed"], again["already"], orders.size()) == (0, 3, 0)


def test_dead_letters_come_back_with_their_origin(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    id = orders.push({"n": 1}, key="k")
    item = orders.reserve()
    assert item is not None
    orders.bury(item, error=ValueError("bad"), reason="no city")
    exported = export(run, "orders", "--dead")
    assert exported == export(run, "orders.dead")
    broker.drop_queue("orders.dead", force=True)
    run("import", "orders.dead", input=exported)
    assert export(run, "orders.dead") == exported
    assert orders.dead.replay().pushed == 1
    (item,) = orders.peek(9)
    assert (item.id, item.payload, item.key) == (id, {"n": 1}, "k")
    # The letter has gone on: the same import adds nothing.
    assert "imported 0 items" in run("import", "orders.dead", input=exported).stdout


def test_a_history_comes_back_as_history(run: Run, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("done", history=3600)
    for n in range(3):
        queue.push({"n": n}, headers={"n": n})
        queue.pop()
    exported = export(run, "done", "--history")
    assert len(exported.splitlines()) == 3
    broker.drop_queue("done")
    result = run("import", "done", input=exported)
    assert (result.exit_code, "keeps no history" in result.stderr) == (2, True)
    assert run("configure", "done", "--history", "1h", "--yes", "--new").exit_code == 0
    assert run("import", "done", input=exported).exit_code == 0
    assert export(run, "done", "--history") == exported
    assert [item.payload["n"] for item in broker.queue("done").history()] == [0, 1, 2]
    now = datetime.now(UTC)
    for document in raw.find({"q": "done"}):
        assert now + timedelta(minutes=59) < document["expires"] < now + timedelta(minutes=61)
    assert broker.queue("done").size() == 0


def test_a_state_or_a_filter_is_exported(run: Run, orders: Queue) -> None:
    orders.push_many([{"n": n} for n in range(5)])
    orders.push({"n": 9}, delay=3600)
    assert len(export(run, "orders", "--state", "scheduled").splitlines()) == 1
    lines = export(run, "orders", "--where", '{"n": {"$gt": 3}}').splitlines()
    assert [json.loads(line)["payload"]["n"]["$numberInt"] for line in lines] == ["4", "9"]
    assert run("export", "orders", "--history", "--dead").exit_code == 2
    assert export(run, "orders", "--history") == ""


def test_a_file_has_its_name_only_when_it_is_complete(run: Run, orders: Queue, tmp_path: Path) -> None:
    orders.push(1)
    path = tmp_path / "orders.jsonl"
    path.write_text("mine")
    result = run("export", "orders", "-o", str(path))
    assert (result.exit_code, path.read_text()) == (2, "mine")
    result = run("export", "orders", "-o", str(tmp_path / "none" / "x"))
    assert (result.exit_code, "cannot be written" in result.stderr) == (1, True)
    path.unlink()
    result = run("export", "orders", "-o", str(path), "--json")
    assert json.loads(result.stdout) == {"queue": "orders", "exported": 1, "file": str(path)}
    assert [file.name for file in tmp_path.iterdir()] == ["orders.jsonl"]


def test_of_two_exports_to_one_file_the_one_that_ends_first_has_it(
    run: Run, orders: Queue, tmp_path: Path, at_command: AtCommand
) -> None:
    path, first = tmp_path / "orders.jsonl", list[Any]()
    orders.push(1)

    def export_meanwhile() -> None:
        first.append(run("export", "orders", "-o", str(path)))
        orders.push(2)

    at_command("before", "find", export_meanwhile, skip=2)  # when it reads the items into its file
    second = run("export", "orders", "-o", str(path))
    assert [result.exit_code for result in (*first, second)] == [0, 1]
    assert "was made by another program meanwhile, and stays as it is" in second.stderr
    assert len(path.read_text().splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["orders.jsonl"]


def test_what_mongoq_has_noted_on_an_item_is_carried(run: Run, broker: mongoq.Broker, orders: Queue, raw: Any) -> None:
    id = orders.push(1)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    notes = {
        "error": {"type": "app.NoCity", "message": "x", "at": at, "traceback": "y"},
        "origin": {"queue": "a", "id": ObjectId(), "reason": "replayed", "attempts": 1, "key": None, "at": at},
        "replayed": "a",
        "hops": 3,
        "trail": [{"queue": "a", "stage": "s", "taken": at, "payload": {"$oid": "x"}}],
        "joined": {"queue": "a", "inputs": [{"id": ObjectId(), "hops": 1}]},
        "missed": True,
    }
    raw.update_one({"_id": id}, {"$set": notes})
    exported = export(run, "orders")
    broker.drop_queue("orders", force=True)
    assert run("import", "orders", input=exported).exit_code == 0
    assert export(run, "orders") == exported
    found = raw.find_one({"_id": id})
    assert {name: found[name] for name in notes} == notes


def line(**fields: Any) -> str:
    whole = {"id": {"$oid": "0" * 24}, "payload": 1, "due": {"$date": "2026-01-01T00:00:00Z"}, **fields}
    return json.dumps({name: value for name, value in whole.items() if value is not ...})


def test_a_bad_line_is_named_and_the_lines_before_it_are_imported(run: Run, orders: Queue) -> None:
    for bad, problem in (
        ("{", "not valid JSON"),
        ("[]", "item: a document with the fields of an exported item"),
        (line(id=...), "id: is missing"),
        (line(id=1), "id: a bson.ObjectId"),
        (line(payload=...), "payload: is missing"),
        (line(due=...), "due: an exported item has either"),
        (line(processed={"$date": "2026-01-01T00:00:00Z"}), "due: an exported item has either"),
        (line(priority=101), "priority: an int"),
        (line(attempts=-1), "attempts: a whole number"),
        (line(key=""), "key: cannot be empty"),
        (line(origin=1), "origin: not of the type"),
        (line(prioritty=1), "prioritty: no field"),
        (line(parked={}), "parked: the item waits"),
        ('{"bson": {"$binary": {"base64": "AAAA", "subType": "00"}}}', ""),
    ):
        good = line(id={"$oid": str(ObjectId())})
        result = run("import", "orders", input=f"{good}\n\n{bad}\n{line()}\n")
        assert result.exit_code == 1, bad
        assert f"line 3: {problem}" in result.stderr
        assert result.stderr.endswith("; 1 item imported\n")
        assert orders.purge() == 1


def test_a_dry_run_checks_all_and_imports_nothing(run: Run, broker: mongoq.Broker) -> None:
    text = f"{line()}\n{line()}\n"
    change = f"import 2 items into orders, a new queue in {broker.namespace}"
    assert run("import", "orders", "--dry-run", input=text).stdout == f"would {change}\n"
    result = run("import", "orders", "--dry-run", input=f"{text}{{\n")
    assert (result.exit_code, "line 3" in result.stderr) == (1, True)
    assert broker.queues() == []


def test_items_in_the_way_are_named_and_the_others_imported(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    first = orders.push(1)
    second = orders.push(2, key="k")
    third = orders.push(3)
    exported = export(run, "orders")
    item = orders.reserve()
    assert item is not None
    orders.purge()
    orders.move(item, "elsewhere")
    broker.queue("elsewhere").push("x", key="k")
    orders.push("newer", key="k")
    result = run("import", "orders", input=exported)
    assert result.exit_code == 1
    assert result.stdout.startswith("imported 1 item into orders\n")
    assert f"refused {first}: an item of queue 'elsewhere' has its id" in result.stdout
    assert f"refused {second}: a live item has its key 'k'" in result.stdout
    assert third in {each.id for each in orders.peek(9)}
    result = run("import", "others", input=exported)
    assert f"refused {third}: an item of queue 'orders' has its id" in result.stdout


def test_items_that_cannot_be_decoded_are_left_out_and_named(run: Run, orders: Queue, raw: Any) -> None:
    orders.push(1)
    id = ObjectId()
    fields = {"_id": id, "q": "orders", "payload": "XX", "when": datetime(2020, 1, 1, tzinfo=UTC), "priority": 0}
    raw.insert_one(RawBSONDocument(bson.encode(fields).replace(b"XX", b"\xff\xff")))
    result = run("export", "orders")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    assert f"left out 1 item that cannot be decoded: {id}" in result.stderr


def test_an_unknown_queue_is_an_error_with_the_nearest_names(run: Run, orders: Queue) -> None:
    orders.push(1)
    for options in ([], ["--dead"], ["--history"]):
        result = run("export", "ordres", *options)
        assert (result.exit_code, result.stdout, "'orders'" in result.stderr) == (1, "", True)


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "mongoq", *arguments]
    return subprocess.Popen(command, env={**os.environ, **environment}, text=True, bufsize=1, **pipes)


def test_an_interrupted_import_says_how_far_it_came(environment: dict[str, str], orders: Queue) -> None:
    with start(environment, "import", "orders") as process:
        for _ in range(3):
            process.stdin.write(line(id={"$oid": str(ObjectId())}) + "\n")  # type: ignore[union-attr]
        until(lambda: orders.size() == 3)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    # The signal may come while the reply to the last batch is on its way.
    assert re.search(r"stopped; [0-3] items? imported, and maybe a batch under way; import the same", errors)
    assert "Traceback" not in errors
    assert orders.counts().reserved == 0


@pytest.mark.prove
def test_an_interrupted_export_says_how_far_it_came(environment: dict[str, str], orders: Queue, tmp_path: Path) -> None:
    orders.push_many(["x" * 1_000] * 2_000)
    with start(environment, "export", "orders") as process:
        # Nobody reads on: the pipe is full, and the command waits.
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "stopped after 0 items of orders" in process.stderr.read()  # type: ignore[union-attr]
    assert orders.counts().reserved == 0


# --- sequences -----------------------------------------------------------------------------------


def test_items_of_sequences_keep_their_order(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    orders.push_many(range(4), sequence="a")
    orders.push_many(range(10, 13), sequence="b")
    orders.push("free")
    exported = export(run, "orders")
    assert len(exported.splitlines()) == 8
    assert len(export(run, "orders", "--state", "blocked").splitlines()) == 5
    assert broker.drop_queue("orders", force=True) == 8
    doubled = exported + exported.splitlines()[-1] + "\n"
    assert run("import", "orders", input=doubled).stdout.startswith("imported 8 items into orders")
    assert "8 were imported before" in run("import", "orders", input=exported).stdout
    seen: dict[Any, list[Any]] = {}
    while batch := orders.reserve_many(9):
        assert orders.reserve() is None
        for item in batch:
            seen.setdefault(item.sequence, []).append(item.payload)
        orders.commit_many(batch)
    assert seen == {"a": [0, 1, 2, 3], "b": [10, 11, 12], None: ["free"]}


def test_processed_items_and_letters_keep_the_name_of_their_sequence(
    run: Run, broker: mongoq.Broker, orders: Queue
) -> None:
    orders.configure(history=3600)
    orders.push_many(range(3), sequence="a")
    orders.commit(orders.reserve() or pytest.fail("nothing"))
    orders.bury(orders.reserve() or pytest.fail("nothing"))
    history, letters = export(run, "orders", "--history"), export(run, "orders", "--dead")
    broker.drop_queue("orders", force=True)
    broker.drop_queue("orders.dead", force=True)
    orders.configure(history=3600)
    run("import", "orders", input=history)
    run("import", "orders.dead", input=letters)
    assert [item.sequence for item in orders.history()] == ["a"]
    assert orders.dead.replay().pushed == 1
    assert [(item.payload, item.sequence) for item in orders.peek()] == [(1, "a")]


def test_items_of_sequences_keep_their_times(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    orders.push_many([1, 2], sequence="a", expires=[3600, 0.001])
    text = export(run, "orders")
    dates = {item.payload: item.start_by for item in [*orders.peek(), *orders.peek(state="blocked")]}
    broker.drop_queue("orders", force=True)
    assert run("import", "others", input=text).exit_code == 0
    others = broker.queue("others")
    assert {item.payload: item.start_by for item in [*others.peek(), *others.peek(state="blocked")]} == dates
    others.commit(others.reserve() or pytest.fail("nothing"))
    assert others.reserve() is None
    assert others.counts().blocked == 0


def test_a_place_that_cannot_be_used_is_named(run: Run, broker: mongoq.Broker, orders: Queue) -> None:
    orders.push(1, sequence="a")
    good = json.loads(export(run, "orders"))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"sequence": ""}, "sequence"),
        ({"sequence": None}, "place"),
        ({"place": -1}, "place"),
        ({"key": "k"}, "place: an item with a place in a sequence has no key"),
    ]
    for change, problem in changes:
        bad = {name: value for name, value in {**good, **change}.items() if value is not None}
        result = run("import", "others", input=json.dumps(bad))
        assert result.exit_code != 0
        assert f"line 1: {problem}" in result.stderr
    assert broker.queue("others").size() == 0
