"""What a queue says about its limits: settings, permits in use, and the next start; whatever other programs stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.shells import Shell

SOON = timedelta(minutes=5)


def holder(by: str, number: int, **changes: Any) -> dict[str, Any]:
    now = datetime.now(UTC).replace(microsecond=0)
    return {"by": by, "number": number, "wanted": 4, "since": now, "until": now + SOON, **changes}


def store_permits(shell: Shell, *holders: dict[str, Any]) -> None:
    shell.raw.insert_one({"_id": "limit:orders", "holders": list(holders)})


async def test_a_queue_without_limits_has_none(shell: Shell) -> None:
    limits = await shell.queue().limits()
    assert isinstance(limits, mongoq.QueueLimits)
    assert (limits.queue, limits.max_running, limits.rate, limits.burst) == ("orders", None, None, None)
    assert (limits.holders, limits.permits, limits.next_start, limits.reason) == ((), 0, None, None)


async def test_the_holders_of_permits_and_those_that_ask_are_named(shell: Shell) -> None:
    queue = shell.queue()
    await queue.configure(max_running=6)
    late = holder("ended", 1, until=datetime.now(UTC) - SOON)
    store_permits(shell, holder("asks", 0), holder("first", 2), late, holder("second", 3))
    limits = await queue.limits()
    assert [(each.by, each.number, each.wanted) for each in limits.holders] == [
        ("second", 3, 4),
        ("first", 2, 4),
        ("asks", 0, 4),
    ]
    assert (limits.max_running, limits.permits, limits.reason) == (6, 5, None)
    await queue.configure(max_running=5)
    assert (await queue.limits()).reason == "workers hold 5 of 5 permits"
    await queue.configure(max_running=None)
    limits = await queue.limits()
    assert (limits.holders, limits.reason) == ((), None)


async def test_the_next_start_is_that_of_the_bucket_by_the_rate_of_now(shell: Shell) -> None:
    queue = shell.queue()
    await queue.configure(rate="1/m", burst=1)
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30)
    shell.raw.insert_one({"_id": "rate:orders", "next": first.timestamp() * 1000, "interval": 60_000.0})
    limits = await queue.limits()
    assert limits.next_start == first
    assert limits.reason == f"the next start under 1/m is at {limits.to_document()['next_start']}"
    await queue.configure(rate="1/h")
    assert abs((await queue.limits()).next_start - first - timedelta(minutes=59)) <= timedelta(milliseconds=1)
    await queue.configure(rate="100/s")
    assert (await queue.limits()).next_start is None, "an item may start now"


@pytest.mark.parametrize(
    ("permits", "bucket"),
    [
        ({"holders": [{"by": "me"}]}, {"next": "soon", "interval": 1.0}),
        ({"holders": [{**holder("me", 1), "until": "soon"}]}, {"next": float("inf"), "interval": 1.0}),
        ({"holders": 7}, {"next": 1e300, "interval": 1.0}),
        ({}, {}),
    ],
)
async def test_what_other_programs_have_stored_counts_as_nothing(shell: Shell, permits: Any, bucket: Any) -> None:
    queue = shell.queue()
    await queue.configure(max_running=5, rate="5/s")
    shell.raw.insert_many([{"_id": "limit:orders", **permits}, {"_id": "rate:orders", **bucket}])
    limits = await queue.limits()
    assert (limits.holders, limits.next_start, limits.reason) == ((), None, None)


async def test_settings_that_cannot_be_used_are_an_error(shell: Shell) -> None:
    shell.raw.insert_one({"_id": "queue:orders", "settings": {"rate": 7}})
    with pytest.raises(mongoq.CollectionUnsuitable, match="orders"):
        await shell.queue().limits()
