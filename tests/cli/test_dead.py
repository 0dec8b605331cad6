"""Commands ``dead …``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Read, Run

Queue = mongoq.Queue[Any]

HOSTILE = "[bold]x[/] \x1b[31m"
"""Text that rich, or a terminal, would obey."""


class NoCity(Exception):
    """Error of a handler."""


def bury(queue: Queue, payload: Any, *, error: Any = None, reason: str | None = None, **options: Any) -> ObjectId:
    id: ObjectId = queue.push(payload, **options)
    (item,) = [item for item in queue.reserve_many(100) if item.id == id]
    try:
        if isinstance(error, BaseException):
            raise error
    except Exception as caught:
        queue.bury(item, error=caught, reason=reason)
    else:
        queue.bury(item, error=error, reason=reason)
    return id


@pytest.fixture
def orders(broker: mongoq.Broker) -> Queue:
    return broker.queue("orders")


@pytest.fixture
def letters(orders: Queue, raw: Any) -> list[ObjectId]:
    """Four letters: two without their city, one after a timeout in a stage, one without an error."""
    ids = [
        bury(orders, {"n": 0}, error=NoCity("Atlantis"), reason="no city", key="k"),
        bury(orders, {"n": 1}, error=TimeoutError(HOSTILE)),
        bury(orders, {"n": 2}, error=NoCity("Vineta"), reason="no city"),
        bury(orders, {"n": 3}),
    ]
    raw.update_one({"_id": ids[1]}, {"$set": {"origin.stage": "route"}})
    return ids


NO_CITY = f"{__name__}.NoCity"


def test_the_same_letters_are_listed_counted_and_replayed(read: Read, orders: Queue, letters: list[ObjectId]) -> None:
    selections: list[tuple[list[str], list[int]]] = [
        ([], [0, 1, 2, 3]),
        (["--limit", "2"], [0, 1]),
        (["--where", '{"n": {"$gte": 2}}'], [2, 3]),
        (["--reason", "no city"], [0, 2]),
        (["--reason", "no"], []),
        (["--error", "TimeoutError"], [1]),
        (["--error", NO_CITY, "--limit", "1"], [0]),
        (["--error", NO_CITY, "--where", '{"n": 2}'], [2]),
        (["--stage", "route"], [1]),
    ]
    for options, chosen in selections:
        ids = [str(letters[n]) for n in chosen]
        assert [row["id"] for row in read("dead", "list", "orders", *options)] == ids
        for command, sentence in (("replay", "send"), ("drop", "delete")):
            (would,) = read("dead", command, "orders", *options, "--dry-run")
            assert would["would"].startswith(f"{sentence} {len(ids)} letter")
            assert (would["count"], would["exact"]) == (len(ids), True)
    assert orders.dead.size() == 4
    (done,) = read("dead", "replay", "orders", "--error", NO_CITY, "--where", '{"n": 2}', "--yes")
    assert done["pushed"] == 1
    assert [item.id for item in orders.peek(9)] == [letters[2]]
    assert read("dead", "replay", "orders", "--yes")[0]["pushed"] == 3


def test_letters_are_dropped_for_good(run: Run, read: Read, orders: Queue, letters: list[ObjectId]) -> None:
    result = run("dead", "drop", "orders", "--reason", "no city", "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted 2 letters of orders.dead\n")
    assert [item.id for item in orders.dead.peek(9)] == [letters[1], letters[3]]
    assert read("dead", "drop", "orders.dead", "--id", str(letters[3]), "--yes") == [
        {"queue": "orders.dead", "deleted": 1}
    ]
    assert [item.id for item in orders.dead.peek(9)] == [letters[1]]
    assert orders.size() == 0


def test_letters_are_moved_to_another_queue(
    run: Run, broker: mongoq.Broker, orders: Queue, letters: list[ObjectId]
) -> None:
    assert run("dead", "move", "orders", "--yes").exit_code == 2
    result = run("dead", "move", "orders", "--to", "repair", "--id", str(letters[0]), "--yes")
    assert (result.exit_code, result.stdout) == (
        0,
        f"sent 1 letter of orders.dead to repair, a new queue in {broker.namespace}\n",
    )
    (item,) = broker.queue("repair").peek(9)
    assert (item.id, item.key, item.attempts) == (letters[0], None, 0)


def test_a_list_is_one_row_for_each_letter(run: Run, letters: list[ObjectId]) -> None:
    result = run("dead", "list", "orders")
    header, *rows = [line for line in result.stdout.splitlines() if line.strip(" ─")]
    assert header.split() == ["id", "died", "queue", "stage", "reason", "error", "message"]
    assert [row.split()[0] for row in rows] == [str(id) for id in letters]
    assert "[bold]x[/] \\x1b[31m" in rows[1]
    assert "\x1b" not in result.output
    result = run("dead", "list", "orders", "--limit", "3")
    assert len([line for line in result.stdout.splitlines() if line.strip(" ─")]) == 4


def test_a_long_list_is_cut_and_says_so(run: Run, orders: Queue, raw: Any) -> None:
    bury(orders, 0)
    letter = raw.find_one({"q": "orders.dead"})
    raw.insert_many([{**letter, "_id": ObjectId()} for _ in range(25)])
    result = run("dead", "list", "orders", "--json")
    assert len(result.stdout.splitlines()) == 20
    result = run("dead", "list", "orders")
    assert "the first 20" in result.stderr


def test_letters_are_grouped_by_reason_and_error(run: Run, read: Read, letters: list[ObjectId]) -> None:
    groups = read("dead", "list", "orders", "--group")
    assert [(group["number"], group["reason"], group["error"]) for group in groups] == [
        (2, "no city", NO_CITY),
        (1, HOSTILE, "TimeoutError"),
        (1, "buried", None),
    ]
    assert groups[0]["example"] == str(letters[0])
    assert groups[0]["first"] < groups[0]["last"]
    assert [group["number"] for group in read("dead", "list", "orders", "--group", "--where", '{"n": 2}')] == [1]
    assert "\x1b" not in run("dead", "list", "orders", "--group").output
    assert run("dead", "list", "orders", "--group", "--id", str(letters[0])).exit_code == 2


def test_a_letter_is_shown_with_its_traceback(run: Run, read: Read, letters: list[ObjectId]) -> None:
    shown = run("dead", "show", "orders", "--id", str(letters[1])).stdout
    for part in (
        str(letters[1]),
        "orders.dead",
        "orders, 1 attempt\n",
        "route",
        '{"n": 1}',
        "TimeoutError: [bold]x[/]",
    ):
        assert part in shown
    assert "raise error" in shown
    assert "\x1b" not in shown
    (document,) = read("dead", "show", "orders", "--error", NO_CITY)
    assert (document["id"], document["payload"], document["origin"]["key"]) == (str(letters[0]), {"n": 0}, "k")
    assert "NoCity" in document["error"]["traceback"] or "raise error" in document["error"]["traceback"]
    assert len(read("dead", "show", "orders", "--limit", "9")) == 4
    result = run("dead", "show", "orders", "--id", "0" * 24, "--id", str(letters[3]))
    assert (result.exit_code, "buried" in result.stdout) == (1, True)
    assert f"holds no letter {'0' * 24}" in result.stderr
    assert run("dead", "show", "orders", "--stage", "none").exit_code == 1


def test_a_letter_of_a_dead_worker_says_that_no_error_is_stored(run: Run, broker: mongoq.Broker, raw: Any) -> None:
    orders = broker.queue("orders", max_retries=1)
    orders.push(1)
    for _ in range(2):
        assert orders.reserve() is not None
        raw.update_one({"q": "orders"}, {"$set": {"when": datetime.now(UTC) - timedelta(hours=1)}})
    assert orders.reserve() is None
    assert "error     none is stored: the worker died" in run("dead", "show", "orders").stdout
    orders.dead.purge()
    orders.push(2)
    item = orders.reserve()
    assert item is not None
    orders.bury(item, reason="no stock")
    assert "error" not in run("dead", "show", "orders").stdout


def test_a_letter_that_holds_its_sequence_says_so(run: Run, read: Read, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders", on_dead="hold")
    first, second = orders.push_many(range(2), sequence="customer-17")
    item = orders.reserve()
    assert item is not None
    orders.bury(item, reason="no stock")
    [listed] = read("dead", "list", "orders")
    assert (listed["id"], listed["holds"]) == (str(first), "customer-17")
    assert "holds     sequence customer-17: its later items wait" in run("dead", "show", "orders").stdout
    assert read("show", str(first))[0]["holds"] == "customer-17"
    assert read("show", str(second))[0]["blocked_by"] == [{"id": str(first), "state": "dead"}]
    assert run("dead", "drop", "orders", "--yes").exit_code == 0
    following = orders.reserve()
    assert following is not None
    orders.bury(following)
    assert run("dead", "replay", "orders", "--yes").exit_code == 0
    assert "holds" not in read("show", str(second))[0]


def test_what_cannot_go_back_is_named_and_fails(run: Run, orders: Queue, letters: list[ObjectId]) -> None:
    orders.push("newer", key="k")
    result = run("dead", "replay", "orders", "--id", str(letters[0]), "--id", "0" * 24, "--yes")
    assert result.exit_code == 1
    assert f"refused {letters[0]}: a live item has its key" in result.stdout
    assert f"not among the letters: {'0' * 24}" in result.stdout
    result = run("dead", "replay", "orders", "--id", str(letters[0]), "--yes", "--json")
    assert json.loads(result.stdout)["refusals"][0]["id"] == str(letters[0])


def test_letters_that_a_caller_holds_stay(run: Run, orders: Queue, letters: list[ObjectId]) -> None:
    item = orders.dead.reserve()
    assert item is not None
    result = run("dead", "replay", "orders", "--yes")
    assert "sent 3 letters" in result.stdout
    assert "left out 1 letter" in result.stdout
    assert [letter.id for letter in orders.dead.peek(9, state="reserved")] == [item.id]


def test_a_script_must_say_yes(run: Run, orders: Queue, letters: list[ObjectId]) -> None:
    for command in (["replay"], ["drop"], ["move", "--to", "x"]):
        result = run("dead", *command, "orders")
        assert result.exit_code == 2
        assert "4 letters of orders.dead" in result.stderr
        assert "--yes" in result.stderr
    assert orders.dead.size() == 4
    # Nothing to change needs no yes.
    assert run("dead", "drop", "orders", "--reason", "none").exit_code == 0


def test_a_dead_queue_of_another_name_is_known_by_the_settings(run: Run, read: Read, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders", dead="graves")
    id = bury(orders, 1)
    for name in ("orders", "graves"):
        assert [row["id"] for row in read("dead", "list", name)] == [str(id)]
    assert run("dead", "replay", "graves", "--yes").exit_code == 0
    assert [item.id for item in orders.peek()] == [id]


def fail(_: Any) -> None:
    raise NoCity("Atlantis")


def failed(broker: mongoq.Broker, *payloads: Any, **options: Any) -> None:
    """Let a pipeline send all payloads from the queue ``flights``, and one of ``ships``, to its error queue."""
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    for name, queue in (("land", "flights"), ("moor", "ships")):
        pipeline.sink(queue, name=name, max_retries=0, **options)(fail)
    broker.queue("flights").push_many(payloads)
    broker.queue("ships").push("a ship")
    pipeline.drain(broker)


@pytest.mark.parametrize("options", [{}, {"delivery": "at-most-once"}], ids=str)
def test_the_stage_the_queue_and_the_error_queue_of_a_pipeline_lead_to_its_letters(
    run: Run, read: Read, broker: mongoq.Broker, options: Any
) -> None:
    failed(broker, 1, 2, 3, **options)
    errors = broker.dead_queue("line.errors")
    ids = {
        name: [str(letter.id) for letter in errors.peek(9) if letter.origin.stage == name] for name in ("land", "moor")
    }
    assert list(map(len, ids.values())) == [3, 1]
    for name in ("land", "flights"):
        assert [row["id"] for row in read("dead", "list", name)] == ids["land"]
    assert {row["id"] for row in read("dead", "list", "line.errors")} == {*ids["land"], *ids["moor"]}
    assert run("dead", "list", "lan").exit_code == 1
    broker.stats()  # writes the counters, by which empty queues are listed
    rows = {row["queue"]: (row["dead_queue"], row["dead"], row["ready"]) for row in read("queues")}
    there = "line.errors"
    assert rows == {"flights": (there, 3, 0), "ships": (there, 1, 0), there: (None, 0, 4)}
    assert run("dead", "drop", "ships", "--yes").stdout == "deleted 1 letter of line.errors\n"
    assert run("dead", "drop", "land", "--limit", "1", "--yes").stdout == "deleted 1 letter of line.errors\n"
    assert read("dead", "replay", "flights", "--yes")[0]["pushed"] == 2


def test_items_that_have_died_before_or_are_copies_are_no_letters(
    run: Run, read: Read, broker: mongoq.Broker, raw: Any
) -> None:
    """A command for dead letters would delete them."""
    failed(broker, 1)
    broker.dead_queue("line.errors").replay()
    replayed = broker.queue("flights")
    item = replayed.reserve()
    replayed.move(item, "next")
    broker.bind("topic", "bound", "other")
    broker.queue("topic").push(2)
    kept = broker.queue("kept", history=60)
    kept.push(3)
    kept.pop()
    kept.replay(to="copies")
    broker.queue("mixed").push(4)
    raw.insert_one({**raw.find_one({"q": "next"}), "_id": 5, "q": "mixed", "when": item.origin.at})
    for name in ("next", "bound", "copies", "mixed"):
        assert broker.queue(name).size() > 0
        assert run("dead", "drop", name, "--yes").stdout == f"deleted 0 letters of {name}.dead\n"
        assert read("queues", name)[0]["dead_queue"] == f"{name}.dead"
    assert [row["id"] for row in read("dead", "list", "mixed", "--exact")] != []


def test_an_unknown_queue_is_an_error_with_the_nearest_names(run: Run, orders: Queue, letters: list[ObjectId]) -> None:
    for command in (
        ["list", "ordres"],
        ["show", "ordres.dead"],
        ["replay", "ordres", "--yes"],
        ["drop", "ordres", "--yes"],
    ):
        result = run("dead", *command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "the nearest names are 'orders" in result.stderr
    assert orders.dead.size() == 4


def test_a_queue_without_a_dead_queue_says_so(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders", dead=None).push(1)
    result = run("dead", "list", "orders")
    assert (result.exit_code, "has no dead queue" in result.stderr) == (1, True)
