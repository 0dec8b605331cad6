"""Rows whose items must be started in time: the column ``_start_by``, and the option ``expires``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mongoq.errors import ArgumentInvalid
from mongoq.spark import RowRefused
from tests.spark.tables import Target

OVER, FAR = datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def times(target: Target) -> dict[int, datetime | None]:
    return {each["payload"]["n"]: each.get("start_by") for each in target.documents}


def test_rows_have_their_times(target: Target) -> None:
    rows = [(n, [OVER, FAR, None][n % 3]) for n in range(9)]
    target.write("n int, _start_by timestamp", rows[:5], rows[5:])
    assert times(target) == dict(rows)
    assert sorted(item.payload["n"] for item in target.broker.queue("orders").reserve_many(9)) == [1, 2, 4, 5, 7, 8]


def test_the_option_holds_for_rows_without_a_time(target: Target) -> None:
    before = datetime.now(UTC)
    target.write("n int, _start_by timestamp", [(0, None), (1, FAR)], expires=3600)
    found = times(target)
    assert found[1] == FAR
    assert before < (found[0] or pytest.fail("no time")) < datetime.now(UTC) + 2 * HOUR


def test_rows_of_sequences_have_their_times(target: Target) -> None:
    rows = [(n, "a", OVER if n < 3 else None) for n in range(5)]
    target.write("n int, _sequence string, _start_by timestamp", rows)
    assert [item.payload["n"] for item in target.broker.queue("orders").reserve_many(9)] == [3]


def test_a_moved_item_has_the_time_of_its_row(target: Target) -> None:
    queue = target.broker.queue("orders")
    queue.push_many([{"n": n} for n in range(3)])
    ddl = "_id string, _token string, _to string, n int, _start_by timestamp"
    items = queue.reserve_many(3)
    rows = [
        (str(item.id), str(item.token), "priced", item.payload["n"], at)
        for item, at in zip(items, [OVER, FAR, None], strict=True)
    ]
    target.write(ddl, rows, to=None)
    assert times(target) == {0: OVER, 1: FAR, 2: None}


@pytest.mark.parametrize(
    ("ddl", "row", "options", "column"),
    [
        ("n int, _when timestamp, _start_by timestamp", (1, FAR, FAR), {}, "_start_by"),
        ("n int, _delay double", (1, 60.0), {"expires": 60}, "_delay"),
    ],
)
def test_a_row_that_could_never_start_is_refused(
    target: Target, ddl: str, row: Any, options: dict[str, Any], column: str
) -> None:
    with pytest.raises(RowRefused, match=f"row 0 .*column '{column}': the item is due only after"):
        target.write(ddl, [row], **options)
    assert target.documents == []


def test_a_column_of_another_type_is_refused(target: Target) -> None:
    with pytest.raises(ArgumentInvalid, match="column '_start_by' is to be a timestamp, not string"):
        target.write("n int, _start_by string", [(1, "soon")])
