"""A row that is written again, by a task that is run again or by a job that is, is pushed once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import UTC, datetime

import pytest

from mongoq.spark import RowRefused
from tests.spark.tables import Target

DDL = "n int, s string"


def _rows(number: int) -> list[tuple[int, str]]:
    """Rows of which some are equal."""
    return [(n % 70, "even" if n % 2 else "odd") for n in range(number)]


def _counted(target: Target) -> Counter[tuple[int, str]]:
    return Counter((each["n"], each["s"]) for each in target.payloads)


def test_equal_rows_are_as_many_items(target: Target) -> None:
    target.write(DDL, _rows(300))
    assert _counted(target) == Counter(_rows(300))


def test_a_task_run_again_in_another_order_pushes_nothing_twice(target: Target) -> None:
    rows, dice = _rows(300), random.Random(7)
    target.write(DDL, dice.sample(rows, 170)[:100])  # and then the task died
    for _ in range(2):
        dice.shuffle(rows)
        cut = dice.randrange(300)
        target.write(DDL, rows[:cut], rows[cut:], batchSize=dice.choice([7, 100, 10_000]))
    assert _counted(target) == Counter(rows)


def test_what_rows_say_besides_their_payload_tells_them_apart(target: Target) -> None:
    ddl = "n int, _priority int, _to string, _headers map<string,string>, _when timestamp"
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    rows = [
        (1, None, None, None, None), (1, 5, None, None, None), (1, None, "refunds", None, None),
        (1, None, None, [("a", "b"), ("c", "d")], None), (1, None, None, None, moment), (1, 5, None, None, None),
    ]  # fmt: skip
    for order in (rows[:3], rows[::-1], rows):
        target.write(ddl, order)
    assert len(target.documents) == 6
    assert Counter(each["priority"] for each in target.documents) == {0: 4, 5: 2}
    assert Counter(each["q"] for each in target.documents) == {"orders": 5, "refunds": 1}
    assert sum(each["when"] == moment for each in target.documents) == 1


def test_other_jobs_push_their_own(target: Target) -> None:
    for label in ("1", "2", "1", "", ""):  # without a label each run is a write of its own
        target.write(DDL, _rows(10), label=label)
    assert len(target.documents) == 40


def test_twins_that_run_at_once_push_one_item_for_each_row(target: Target) -> None:
    rows = _rows(2000)
    target.write(DDL, [])
    barrier, errors = threading.Barrier(2), []

    def run(order: list[tuple[int, str]]) -> None:
        barrier.wait()
        try:
            target.write(DDL, order, batchSize=300)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(order,)) for order in (rows, rows[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert _counted(target) == Counter(rows)


def test_keyed_rows_are_pushed_once_also_when_their_item_is_done(target: Target) -> None:
    queue = target.broker.queue("orders")
    target.write("n int, _key string", [(1, "a")])
    queue.commit(queue.reserve())
    target.write("n int, _key string", [(1, "a")])
    assert queue.size() == 0
    target.write("n int, _key string", [(1, "a")], label="2")
    assert queue.size() == 1


# --- ids of a column -----------------------------------------------------------------------


def test_an_id_column_makes_the_same_items_in_every_job_and_partition(target: Target) -> None:
    for _ in range(2):
        target.write(DDL, [(1, "a"), (2, "b"), (1, "c")], idColumn="n", label="")
    assert sorted(each["n"] for each in target.payloads) == [1, 2]
    target.write(DDL, [(1, "a")], to="others", idColumn="n", label="")
    target.write(DDL, [(1, "a")], label="again", idColumn="n")
    assert len(target.documents) == 4


def test_copies_of_items_show_their_originals_and_keep_headers(target: Target) -> None:
    orders = target.broker.queue("orders", history=3600)
    ids = [orders.push({"n": n}, headers={"trace": f"t{n}"}, key=f"k{n}") for n in range(3)]
    for _ in ids:
        orders.commit(orders.reserve())
    unknown = "0123456789abcdef01234567"
    rows = [(str(id), n, None) for n, id in enumerate(ids)] + [(unknown, 8, None), ("no id", 9, '{"own": 1}')]
    for _ in range(2):
        target.write("_id string, n int, _headers string", rows[:2], rows[2:], idColumn="_id", label="VAT")
    copies = {item.payload["n"]: item for item in orders.reserve_many(9)}
    assert [copies[n].origin for n in (8, 9)] == [None, None]
    assert [copies[n].headers for n in (0, 1, 2, 8, 9)] == [{"trace": f"t{n}"} for n in range(3)] + [{}, {"own": 1}]
    for n, id in enumerate(ids):
        origin = copies[n].origin
        assert origin
        assert (origin.queue, origin.id, origin.reason) == ("orders", id, "replayed: VAT")
        assert (origin.attempts, origin.key, copies[n].key) == (1, f"k{n}", None)
        orders.commit(copies[n])
    assert orders.replay(dry_run=True).found == 3  # and no copies
    target.write("_id string, n int, _to string", [(str(ids[0]), 0, "x")], idColumn="_id", label="")
    [copy] = target.broker.queue("x").peek()
    assert copy.origin
    assert copy.origin.reason == "replayed"


def test_an_id_column_may_belong_to_the_envelope_or_to_nothing(target: Target) -> None:
    rows = [("0123456789abcdef01234567", 1), ("0123456789abcdef01234568", 1)]
    for _ in range(2):
        target.write("_id string, n int", rows, idColumn="_id")
        target.write("_source string, n int", rows, idColumn="_source", to="others")
    assert target.payloads == [{"n": 1}] * 4


def test_an_id_is_not_null(target: Target) -> None:
    with pytest.raises(RowRefused, match="row 1 of partition 0: column 'n': it is null, and idColumn makes ids of it"):
        target.write(DDL, [(1, "a"), (None, "b")], idColumn="n")
    assert target.documents == []
