"""Commands that show queues and items."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import DatetimeMS, ObjectId
from bson.raw_bson import RawBSONDocument

import mongoq
from tests.cli.conftest import Read, Run

HOSTILE = "[bold red]x[/] \x1b[31m\x1b]0;title\x07 \x9b2J \u202egpj :smile:"
"""Text that rich, or a terminal, would obey."""
RECORD = {"host": "host", "pid": 7, "every": 60.0, "queues": [{"queue": "orders", "held": 2}]}
"""The record of a worker, but for its times."""
OF_ONE_QUEUE = [
    ["peek", "ordres"],
    ["history", "ordres"],
    ["stats", "ordres"],
    ["settings", "ordres"],
    ["limits", "ordres"],
    ["queues", "ordres"],
]
ALL = [["queues"], ["watch"], ["show", "0" * 24], ["history", "q"]]


@pytest.fixture
def orders(broker: mongoq.Broker) -> mongoq.Queue[Any]:
    """A queue with history."""
    return broker.queue("orders", history=3600)


# --- queues --------------------------------------------------------------------------------


def test_queues_shows_a_row_for_each_queue(run: Run, orders: mongoq.Queue[Any], broker: mongoq.Broker) -> None:
    orders.push_many(range(3))
    orders.push(4, delay=60)
    orders.commit(orders.reserve() or pytest.fail("nothing"))
    broker.queue("mails").push(1, when=datetime.now(UTC) - timedelta(hours=2, minutes=5))
    broker.queue("mails").pause()
    result = run("queues")
    header, _, mails, row = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert " ".join(header) == "queue ready scheduled reserved expired oldest rate paused consumers dead"
    assert mails == ["mails", "1", "0", "0", "0", "2h", "5m", "paused", "0", "0"]
    assert row[:5] == ["orders", "2", "1", "0", "0"]
    assert row[6:] == ["1", "0", "0"]


def test_queues_prints_documents(read: Read, orders: mongoq.Queue[Any]) -> None:
    orders.push_many(range(30))
    (document,) = read("queues", "--budget", "1")
    assert (document["queue"], document["ready"], document["at_least"]) == ("orders", 11, ["ready", "expired"])
    assert document["dead_queue"] == "orders.dead"
    assert datetime.fromisoformat(document["oldest_due"]) <= datetime.fromisoformat(document["at"])


def test_an_unknown_queue_is_an_error_that_names_the_nearest(run: Run, orders: mongoq.Queue[Any]) -> None:
    orders.push(1)
    for command in OF_ONE_QUEUE:
        result = run(*command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "there is no queue 'ordres'" in result.stderr
        assert "'orders'" in result.stderr
        assert result.stderr.count("\n") == 1


# --- peek ----------------------------------------------------------------------------------


def test_peek_shows_the_next_items_in_the_order_of_claims(run: Run, orders: mongoq.Queue[Any]) -> None:
    orders.push({"n": 1})
    id = orders.push({"n": 2}, priority=-1, key="k")
    orders.push({"n": 3}, delay=60)
    lines = [line for line in run("peek", "orders", "-n", "1").stdout.splitlines() if line.strip()]
    assert len(lines) == 3
    assert lines[2].split()[0] == str(id)
    assert '{"n": 2}' in lines[2]
    assert '{"n": 3}' in run("peek", "orders", "--state", "scheduled").stdout
    assert run("peek", "orders", "--state", "live").stdout.count('"n"') == 3


def test_peek_prints_documents_that_other_commands_take(read: Read, orders: mongoq.Queue[Any]) -> None:
    payload = {"id": ObjectId(), "uuid": UUID(int=7), "at": datetime(2026, 1, 1, tzinfo=UTC)}
    id = orders.push(payload, key="k", headers={"trace": "t"})
    (document,) = read("peek", "orders")
    assert (document["id"], document["key"], document["headers"]) == (str(id), "k", {"trace": "t"})
    assert document["payload"]["id"] == {"$oid": str(payload["id"])}
    assert document["payload"]["at"] == {"$date": "2026-01-01T00:00:00Z"}
    assert read("show", document["id"])[0]["payload"] == document["payload"]


def test_peek_names_the_worker_of_a_reserved_item_and_the_time_of_its_claim(
    run: Run, read: Read, orders: mongoq.Queue[Any]
) -> None:
    orders.push_many(range(2))
    claimed = orders.reserve() or pytest.fail("nothing")
    assert claimed.token is not None
    assert claimed.by is not None
    since = claimed.token.generation_time.strftime("%Y-%m-%dT%H:%M:%S")
    (document,) = read("peek", "orders", "--state", "reserved")
    assert (document["by"], document["since"][:19]) == (claimed.by, since)
    header, _, row = [line.split() for line in run("peek", "orders", "--state", "reserved").stdout.splitlines()]
    assert header == ["id", "by", "since", "lease", "until", "attempts", "payload"]
    assert (row[1], row[2][:10]) == (claimed.by, since[:10])
    orders.rollback(claimed)
    assert "since" not in read("peek", "orders")[0]
    assert claimed.by not in run("peek", "orders").stdout


def test_peek_says_that_there_are_no_items(run: Run, read: Read, orders: mongoq.Queue[Any]) -> None:
    orders.push(1, delay=60)
    result = run("peek", "orders")
    assert (result.exit_code, result.stdout) == (0, "queue 'orders' has no ready items\n")
    assert read("peek", "orders") == []


# --- show ----------------------------------------------------------------------------------


def test_show_finds_an_item_in_any_queue_with_its_failure_and_payload(run: Run, orders: mongoq.Queue[Any]) -> None:
    def fail() -> None:
        raise ValueError("no such order")

    id = orders.push({"customer": {"name": "Ädä"}}, headers={"trace": "t"})
    item = orders.reserve() or pytest.fail("nothing")
    try:
        fail()
    except ValueError as error:
        orders.bury(item, error=error, reason="tests")
    result = run("show", str(id))
    text = result.stdout
    assert result.exit_code == 0
    assert re.search(r"^queue +orders\.dead$", text, re.MULTILINE)
    assert re.search(r"^state +ready$", text, re.MULTILINE)
    assert '"reason": "tests"' in text
    assert '  "customer": {\n    "name": "Ädä"\n  }' in text
    assert "in fail\n" in text
    assert text.rstrip().endswith("ValueError: no such order")


def test_show_prints_the_whole_envelope_as_json(read: Read, orders: mongoq.Queue[Any]) -> None:
    id = orders.push([1, 2], key="k")
    item = orders.reserve() or pytest.fail("nothing")
    (document,) = read("show", str(id))
    assert (document["state"], document["token"], document["attempts"]) == ("reserved", str(item.token), 1)
    assert document["lease_until"] == (item.lease_until or pytest.fail("none")).isoformat(
        timespec="milliseconds"
    ).replace("+00:00", "Z")
    assert document["payload"] == [1, 2]


def test_show_prints_the_trail(run: Run, read: Read, orders: mongoq.Queue[Any], raw: Any) -> None:
    id, at = orders.push(1), datetime(2026, 1, 1, tzinfo=UTC)
    hop = {
        "queue": "raw",
        "stage": "parse",
        "by": "host:1:aa",
        "taken": at,
        "settled": at,
        "attempts": 1,
        "ended": "moved",
    }
    raw.update_one({"_id": id}, {"$set": {"trail": [{**hop, "to": "orders", "payload": {"a": 1}}]}})
    assert re.search(r"raw +parse +moved +orders +1 +2026-01-01T00:00:00Z", run("show", str(id)).stdout)
    assert read("show", str(id))[0]["trail"][0]["payload"] == {"a": 1}


def test_show_says_that_an_item_does_not_exist(run: Run, orders: mongoq.Queue[Any]) -> None:
    orders.push(1)
    result = run("show", "0" * 24)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no item {'0' * 24}" in result.stderr


def test_show_says_that_only_the_id_is_left(run: Run, read: Read, broker: mongoq.Broker) -> None:
    queue = broker.queue("plain")
    id = queue.push({"secret": 1}, id=ObjectId())
    queue.pop()
    assert "only its id is remembered" in run("show", str(id)).stdout
    assert read("show", str(id))[0]["state"] == "remembered"


def test_show_prints_what_can_be_read_of_a_damaged_document(run: Run, read: Read, raw: Any) -> None:
    envelope = {"_id": ObjectId(), "q": "orders", "payload": {"text": "ABC", "n": 7}, "when": datetime.now(UTC)}
    raw.insert_one(RawBSONDocument(bson.encode(envelope).replace(b"ABC", b"\xff\xfe\xfd")))
    result = run("show", str(envelope["_id"]))
    assert result.exit_code == 0
    assert "as far as it can be read" in result.stderr
    assert '"n": 7' in result.stdout
    assert read("show", str(envelope["_id"]))[0]["payload"]["n"] == 7


def test_fields_of_other_programs_are_shown_as_they_are(run: Run, read: Read, raw: Any) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"when": "soon"},
        {"when": datetime(2026, 1, 1, tzinfo=UTC), "error": "text", "origin": 7, "trail": {"a": 1}, "headers": [1]},
        {"when": DatetimeMS(2**62), "priority": "high", "attempts": None, "key": 7},
    ]
    for number, fields in enumerate(odd):
        id = raw.insert_one({"q": "orders", "payload": [1], **fields}).inserted_id
        processed = {"key": 100 + number, "processed": datetime.now(UTC)}
        raw.insert_one({"q": "orders", "payload": [1], **fields, **processed})
        result = run("show", str(id))
        assert (result.exit_code, result.stderr) == (0, "")
        assert read("show", str(id))[0]["payload"] == [1]
    for command in (
        ["peek", "orders", "--state", "live"],
        ["peek", "orders", "--state", "processed"],
        ["history", "orders"],
        ["queues"],
    ):
        result = run(*command)
        assert (result.exit_code, result.stderr) == (0, "")
        assert read(*command)


def test_an_id_that_is_none_is_a_usage_error_that_names_the_argument(run: Run) -> None:
    for id in ("65a1b2c3", "z" * 24, "", f" {'0' * 24}"):
        result = run("show", id)
        assert result.exit_code == 2
        assert "'ID'" in result.stderr
        assert "24 hex digits" in result.stderr


# --- history -------------------------------------------------------------------------------


@pytest.fixture
def processed(orders: mongoq.Queue[Any], raw: Any) -> list[ObjectId]:
    """Ten items in history, processed an hour after each other until an hour ago."""
    ids = orders.push_many([{"n": n, "at": datetime(2026, 1, n + 1, tzinfo=UTC)} for n in range(10)])
    orders.commit_many(orders.reserve_many(10))
    for n, id in enumerate(ids):
        raw.update_one({"_id": id}, {"$set": {"processed": datetime.now(UTC) - timedelta(hours=10 - n)}})
    return ids


def test_history_selects_by_time_payload_and_number(read: Read, processed: list[ObjectId]) -> None:
    selections: list[tuple[list[str], list[int]]] = [
        (["--since", "150m"], [8, 9]),
        (["--until", "510m"], [0, 1]),
        (["--since", "5h", "--until", "150m"], [6, 7]),
        (["--limit", "2"], [0, 1]),
        (["--limit", "0"], list(range(10))),
        (["--where", '{"n": {"$gte": 8}}'], [8, 9]),
        (["--where", '{"at": {"$date": "2026-01-04T00:00:00Z"}}'], [3]),
        (["--where", '{"$or": [{"n": 1}, {"n": {"$mod": [5, 0]}}]}', "--limit", "2"], [0, 1]),
    ]
    for options, numbers in selections:
        assert [document["payload"]["n"] for document in read("history", "orders", *options)] == numbers, options


def test_history_shows_processed_items_oldest_first(run: Run, read: Read, processed: list[ObjectId]) -> None:
    documents = read("history", "orders")
    assert [document["id"] for document in documents] == [str(id) for id in processed]
    result = run("history", "orders")
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[2:]] == [str(id) for id in processed]
    assert result.stderr == ""
    assert "there may be more" in run("history", "orders", "--limit", "3").stderr
    later = read("history", "orders", "--since", documents[4]["processed"])  # as it was printed
    assert [document["payload"]["n"] for document in later] == [4, 5, 6, 7, 8, 9]


def test_history_says_that_nothing_matches(run: Run, read: Read, processed: list[ObjectId]) -> None:
    assert (
        run("history", "orders", "--where", '{"n": 77}').stdout == "queue 'orders' has no processed items that match\n"
    )
    assert read("history", "orders", "--since", "1s") == []


def test_a_bad_option_of_history_is_a_usage_error(run: Run, processed: list[ObjectId]) -> None:
    for options, problem in (
        (["--since", "1h", "--until", "2h"], "--until"),
        (["--where", "n = 1"], "not valid JSON"),
        (["--limit", "-1"], "--limit"),
    ):
        result = run("history", "orders", *options)
        assert (result.exit_code, problem in result.stderr) == (2, True)


def test_a_pattern_that_the_server_refuses_is_an_error_in_one_line(run: Run, processed: list[ObjectId]) -> None:
    result = run("history", "orders", "--where", '{"n": {"$regex": "("}}')
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "the server refuses it" in result.stderr


# --- workers, bindings, stats, settings ----------------------------------------------------


def test_workers_shows_who_consumes_what(run: Run, read: Read, broker: mongoq.Broker, raw: Any) -> None:
    assert run("workers").stdout == f"there are no workers in {broker.namespace}\n"
    now = datetime.now(UTC)
    queues = [{"queue": "orders", "held": 2, "overdue": 3725.5}, {"queue": "mails", "held": 0}]
    raw.insert_one({"_id": "worker:host:7:abcd", **RECORD, "started": now, "seen": now, "queues": queues})
    assert re.search(r"host:7:abcd +yes .* 2 +orders \(2, one for 1h 2m\), mails \(0\)", run("workers").stdout)
    (document,) = read("workers")
    assert (document["worker"], document["pid"], document["queues"]) == ("host:7:abcd", 7, {"orders": 2, "mails": 0})
    assert document["overdue_seconds"] == {"orders": 3725.5}


def test_bindings_shows_the_queues_of_each_topic(run: Run, read: Read, broker: mongoq.Broker) -> None:
    assert run("bindings").stdout == f"no queue in {broker.namespace} is bound to a topic\n"
    broker.bind("sold", "mails", "audit")
    assert re.search(r"sold +mails *\n *sold +audit", run("bindings").stdout)
    assert read("bindings") == [{"topic": "sold", "queues": ["mails", "audit"]}]


def test_stats_shows_the_events_of_queues(
    run: Run, read: Read, orders: mongoq.Queue[Any], broker: mongoq.Broker
) -> None:
    assert run("stats").stdout == f"nothing was counted yet in {broker.namespace}\n"
    orders.push_many(range(3))
    orders.pop()
    broker.queue("mails").push(1)
    broker.stats()
    assert [document["queue"] for document in read("stats")] == ["mails", "orders"]
    (document,) = read("stats", "orders")
    assert (document["put"], document["get"], document["commit"]) == (3, 1, 0)
    assert re.search(r"orders +3 +1 +0", run("stats", "orders").stdout)
    assert [document["queue"] for document in read("stats", "orders", "mails", "orders")] == ["mails", "orders"]
    assert run("stats", "orders", "oders").exit_code == 1


def test_settings_shows_stored_ones_and_defaults(run: Run, read: Read, broker: mongoq.Broker) -> None:
    broker.queue("orders").configure(lease=90, max_retries=None)
    text = run("settings", "orders").stdout
    assert re.search(r"lease +1m 30s +stored", text)
    assert re.search(r"history +none.* +default", text)
    assert re.search(r"max-retries +no limit +stored", text)
    (document,) = read("settings", "orders")
    assert document == {
        "queue": "orders",
        "lease": 90.0,
        "history": None,
        "max_retries": None,
        "dead": "orders.dead",
        "max_running": None,
        "rate": None,
        "burst": None,
        "max_in_sequence": 1,
        "on_expired": "history",
        "on_dead": "continue",
        "paused": False,
        "stored": ["lease", "max_retries"],
    }


# --- hostile text, no server, closed pipes ---------------------------------------------------


def test_text_of_users_is_neither_markup_nor_obeyed(run: Run, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue(HOSTILE, history=3600)
    id = queue.push({HOSTILE: HOSTILE}, headers={"h": HOSTILE})
    queue.rollback(queue.reserve() or pytest.fail("nothing"), error=HOSTILE)
    queue.push(HOSTILE)
    queue.commit_many(queue.reserve_many(1))
    broker.bind("topic", HOSTILE)
    now = datetime.now(UTC)
    queues = [{"queue": HOSTILE, "held": 1}]
    raw.insert_one({"_id": f"worker:{HOSTILE}:7:a", **RECORD, "started": now, "seen": now, "queues": queues})
    broker.stats()
    arguments = {"peek": [HOSTILE], "history": [HOSTILE], "settings": [HOSTILE], "show": [str(id)]}
    for command in ("queues", "peek", "show", "history", "stats", "bindings", "workers", "settings"):
        text = run(command, *arguments.get(command, [])).stdout
        if command != "settings":
            assert "[bold red]x[/]" in text
            assert ":smile:" in text
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert "\x1b" not in run(command, *arguments.get(command, []), "--json").stdout


def test_no_server_is_code_3_without_credentials(run: Run, environment: dict[str, str]) -> None:
    environment["MONGOQ_URI"] = "mongodb://ada:geheim@127.0.0.1:1/?serverSelectionTimeoutMS=50"
    for command in ALL:
        result = run(*command)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "127.0.0.1:1" in result.stderr
        assert "geheim" not in result.stderr


def test_a_closed_pipe_ends_a_command_quietly(orders: mongoq.Queue[Any], environment: dict[str, str]) -> None:
    orders.push_many([{"text": "x" * 150, "n": n} for n in range(3_000)])
    orders.commit_many(orders.reserve_many(3_000))
    command = [sys.executable, "-m", "mongoq", "history", "orders", "--limit", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert (child.stderr.read(), child.wait()) == (b"", 0)


def test_a_table_for_another_program_has_a_line_for_each_item(
    orders: mongoq.Queue[Any], run: Run, environment: dict[str, str]
) -> None:
    environment["COLUMNS"] = "40"
    orders.push({"text": "long " * 100})
    lines = [line for line in run("peek", "orders").stdout.splitlines() if line.strip()]
    assert len(lines) == 3
    assert lines[2].rstrip().endswith("…")
    assert json.loads(run("peek", "orders", "--json").stdout)["payload"]["text"] == "long " * 100


@pytest.mark.prove
def test_letters_that_the_terminal_lacks_end_no_command(orders: mongoq.Queue[Any], environment: dict[str, str]) -> None:
    id = orders.push({"name": "Zoë 漢"})
    env = {**os.environ, **environment, "PYTHONIOENCODING": "latin-1"}
    for command, shown in (
        (["show", str(id)], "Zoë \\u6f22"),
        (["peek", "orders"], "Zoë \\u6f22"),
    ):
        done = subprocess.run([sys.executable, "-m", "mongoq", *command], env=env, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert shown in done.stdout.decode("latin-1")


# --- sequences -------------------------------------------------------------------------------


def test_blocked_items_are_shown_with_what_blocks_them(run: Run, read: Read, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders")
    first, second, third = orders.push_many(range(3), sequence="a")
    orders.push("free")
    orders.push("b", sequence="b")
    lines = run("peek", "orders", "--state", "blocked").stdout.splitlines()
    assert [line.split()[:4] for line in lines[-2:]] == [
        [str(second), "a", str(first), "(ready)"],
        [str(third), "a", str(first), "(ready)"],
    ]
    assert [item["blocked_by"] for item in read("peek", "orders", "--state", "blocked", "-n", "1")] == [
        [{"id": str(first), "state": "ready"}]
    ]
    orders.reserve()
    assert re.search(rf"blocked by +{first} \(reserved\)", run("show", str(third)).stdout)
    assert read("show", str(third))[0]["blocked_by"] == [{"id": str(first), "state": "reserved"}]
    assert "blocked by" not in run("show", str(first)).stdout
    (row,) = read("queues")
    assert (row["ready"], row["reserved"], row["blocked"]) == (2, 1, 2)
    raw.delete_one({"_id": first})
    assert "mongoq repair-sequences" in run("show", str(third)).stdout


def test_the_column_of_blocked_items_is_there_when_there_are_any(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    assert "blocked" not in run("queues").stdout
    broker.queue("orders").push_many(range(2), sequence="a")
    assert "blocked" in run("queues").stdout


def test_limits_say_what_is_used_and_by_which_workers(
    run: Run, read: Read, broker: mongoq.Broker, orders: mongoq.Queue[Any], raw: Any
) -> None:
    orders.push(1)
    assert (
        "has no limits; mongoq configure orders --max-running 8 --rate 100/m sets some"
        in run("limits", "orders").stdout
    )
    orders.configure(max_running=2, rate="1/h", burst=1)
    assert run("limits", "orders").stdout.startswith("no worker consumes the queue\n")
    orders.pause()
    assert run("limits", "orders").stdout.startswith("the queue is paused; no worker consumes the queue\n")
    now = datetime.now(UTC)
    raw.insert_one({"_id": "worker:host:7:abcd", **RECORD, "started": now, "seen": now})
    assert run("limits", "orders").stdout.startswith("the queue is paused\n")
    orders.resume()
    assert run("limits", "orders").stdout.startswith("an item may start now\n")
    until = now + timedelta(minutes=5)
    permits = {"by": HOSTILE, "number": 2, "wanted": 4, "since": now, "until": until}
    raw.insert_one({"_id": "limit:orders", "holders": [permits]})
    raw.insert_one({"_id": "rate:orders", "next": until.timestamp() * 1000, "interval": 3_600_020.0})
    raw.delete_one({"_id": "worker:host:7:abcd"})
    result = run("limits", "orders")
    assert result.stdout.startswith("workers hold 2 of 2 permits; the next start under 1/h is at ")
    assert "max-running  2" in result.stdout
    assert "\x1b" not in result.stdout
    [document] = read("limits", "orders")
    assert (document["queue"], document["permits"], document["max_running"]) == ("orders", 2, 2)
    assert document["holders"][0]["worker"] == HOSTILE
