"""A row that is written again, by a task that is run again or by a job that is, is pushed once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mongoq.errors import ArgumentInvalid
from mongoq.spark.errors import RowRefused
from mongoq.spark.write.row_ids import ContentIds, Occurrences, ValueIds, canonical_of
from tests.spark.tables import Target, target_in

DDL = "n int, s string"


@pytest.fixture
def target(spark: Any, store: Any) -> Iterator[Target]:
    with target_in(store) as target:
        yield target


def _rows(number: int) -> list[tuple[int, str]]:
    """Rows of which some are equal."""
    return [(n % 70, "even" if n % 2 else "odd") for n in range(number)]


def _counted(target: Target) -> Counter[tuple[int, str]]:
    return Counter((each["n"], each["s"]) for each in target.payloads)


def test_equal_rows_are_as_many_items(target: Target) -> None:
    target.write(DDL, _rows(300))
    assert _counted(target) == Counter(_rows(300))


@pytest.mark.parametrize("seed", range(3))
def test_a_task_run_again_in_another_order_pushes_nothing_twice(target: Target, seed: int) -> None:
    rows, dice = _rows(300), random.Random(seed)
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


def test_other_jobs_and_other_partitions_push_their_own(target: Target) -> None:
    for job, partition in ((("run", "1"), 0), (("run", "1"), 1), (("run", "2"), 0), (("run", "1"), 0)):
        target.write(DDL, _rows(10), job=job, partition=partition)
    assert len(target.documents) == 30


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
    target.write("n int, _key string", [(1, "a")], job=("run", "2"))
    assert queue.size() == 1


# --- ids of a column -----------------------------------------------------------------------


def test_an_id_column_makes_the_same_items_in_every_job_and_partition(target: Target) -> None:
    for job, partition in ((("run", "1"), 0), (("run", "2"), 5), (None, 0)):
        target.write(DDL, [(1, "a"), (2, "b"), (1, "c")], job=job, partition=partition, idColumn="n")
    assert sorted(each["n"] for each in target.payloads) == [1, 2]
    target.write(DDL, [(1, "a")], to="others", idColumn="n")
    target.write(DDL, [(1, "a")], label="again", idColumn="n")
    assert len(target.documents) == 4


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


def test_a_write_that_nobody_has_named_is_refused_where_it_may_happen_twice(target: Target) -> None:
    with pytest.raises(ArgumentInvalid, match="label: in foreachBatch a batch may be written twice: name this write"):
        target.write(DDL, [(1, "a")], job=None)


def _ids(type: Any, values: list[Any], arrow: pa.DataType | None = None) -> list[Any]:
    ids = ValueIds("")
    return [each and ids.ids("q", [each])[0] for each in canonical_of(type)(pa.array(values, arrow))]


def test_equal_values_make_equal_ids_whatever_their_width() -> None:
    assert _ids(IntegerType(), [1, -5], pa.int32()) == _ids(LongType(), [1, -5], pa.int64())
    numbers = [Decimal("1.5"), Decimal("-100"), Decimal("0")]
    assert _ids(DecimalType(10, 1), numbers, pa.decimal128(10, 1)) == _ids(
        DecimalType(20, 5), numbers, pa.decimal128(20, 5)
    )
    there = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert _ids(TimestampType(), [there], pa.timestamp("us", "Europe/Berlin")) == _ids(
        TimestampType(), [there.astimezone(UTC)], pa.timestamp("us", "UTC")
    )


def test_values_that_differ_make_other_ids() -> None:
    micro = timedelta(microseconds=1)
    wall = datetime(2026, 1, 1)
    struct = StructType().add("a", StringType()).add("b", StringType())
    ids = [
        *_ids(StringType(), ["1", "", "a", "True", "\ud7ff"]),
        *_ids(LongType(), [1, 0, 10]),
        *_ids(BooleanType(), [True, False]),
        *_ids(DecimalType(4, 2), [Decimal("1.00"), Decimal("1.01")], pa.decimal128(4, 2)),
        *_ids(BinaryType(), [b"1", b""]),
        *_ids(DateType(), [date(2026, 1, 1), date(2026, 1, 2)]),
        *_ids(TimestampNTZType(), [wall, wall + micro], pa.timestamp("us")),
        *_ids(TimestampType(), [wall.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
        *_ids(struct, [{"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}, {"a": None, "b": "z"}, {"a": "z", "b": None}]),
    ]
    assert len(set(ids)) == len(ids)
    assert None not in ids
    assert _ids(struct, [None], pa.struct([("a", pa.string()), ("b", pa.string())])) == [None]


def test_occurrences_are_counted_however_many_there_are() -> None:
    dice, occurrences, counted = random.Random(1), Occurrences(), Counter[bytes]()
    for _ in range(200):
        digests = [dice.randrange(6000).to_bytes(10) for _ in range(dice.randrange(200))]
        counts = occurrences.counts(digests)
        for place, digest in enumerate(digests):
            assert counts.get(place, 0) == counted[digest]
            counted[digest] += 1


def test_ids_of_one_job_lie_together() -> None:
    ids = ContentIds(("run", "1"), 0)
    all_ids = ids.ids("q", (), [str(n).encode() for n in range(1000)])
    assert len(set(all_ids)) == 1000
    assert len({id[:2] for id in all_ids}) == 1
    assert len({id[2:] for id in all_ids}) == 1000
