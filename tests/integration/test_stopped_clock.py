"""A process whose clocks stand still longer than its lease, and whose replies are lost, reports no success of others.

All clocks of a paused machine stop. When it goes on, its own clock says that its lease still runs, while another
process has taken the item over and has settled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from tests.proxy import Kind, Proxy
from tests.shells import Awaited

START = datetime(2100, 1, 1, tzinfo=UTC)
LEASE = 30.0
DATE = datetime(2100, 6, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """How items are settled, and the command whose reply is lost.

    ``exact``: each command settles one item, so a server that keeps records of writes tells what it did.
    """

    name: str
    settle: Callable[[Any, Any], Awaitable[Any]]
    command: str = "delete"
    number: int = 1
    exact: bool = True
    history: float | None = None


async def shared(queue: Any, items: Any) -> Any:
    """Commit each by a call of its own, and raise what they come to as ``commit_many`` does."""
    results = await asyncio.gather(*(queue.commit(item) for item in items), return_exceptions=True)
    failed = {item.id: error for item, error in zip(items, results, strict=True) if isinstance(error, Exception)}
    if failed:
        raise mongoq.BatchIncomplete("orders", [item.id for item in items if item.id not in failed], failed)


COMMIT = Case("commit", lambda q, items: q.commit(items[0]))
KEPT_COMMIT = Case("kept commit", lambda q, items: q.commit(items[0]), "update", history=60)
ROLLBACK = Case("rollback to the end of the lease", lambda q, items: q.rollback(items[0], delay=LEASE), "update")
BURY = Case("bury", lambda q, items: q.bury(items[0], reason="bad"), "update")
MOVE = Case("move to a date", lambda q, items: q.move(items[0], "next", when=DATE), "update")
COMMIT_MANY = Case("commit of many", lambda q, items: q.commit_many(items), number=3, exact=False)
SHARED = Case("commits that share a command", shared, number=3, exact=False)
MOVE_MANY = Case(
    "move of many to a date",
    lambda q, items: q.move_many([(item, mongoq.Move("next", when=DATE)) for item in items]),
    "update",
    number=3,
    exact=False,
)
ALONE = [COMMIT, KEPT_COMMIT, ROLLBACK, BURY, MOVE]


class Pair:
    """The process whose clock stands still, behind a proxy, and another one beside it."""

    def __init__(self, shell: str, proxy: Proxy, stopped: Any, other_broker: mongoq.Broker) -> None:
        self.retries = "without" not in shell
        self.proxy = proxy
        self.broker = stopped
        self.other_broker = other_broker

    async def reserved(self, case: Case) -> tuple[Any, list[Any]]:
        queue = self.broker.queue("orders", history=case.history)
        await queue.push_many(range(case.number))
        return queue, await queue.reserve_many(case.number, lease=LEASE)


@pytest.fixture(params=["sync", "aio without retries"])
async def pair(
    request: pytest.FixtureRequest, proxy: Proxy, raw: Any, database: str, impatient: None
) -> AsyncIterator[Pair]:
    shell: str = request.param
    address = proxy.uri_with(serverMonitoringMode="poll", retryWrites="false" if "without" in shell else "true")
    later = mongoq.VirtualClock(START)
    later.advance(LEASE + 1)
    stopped = mongoq.VirtualClock(START)
    with mongoq.Broker(raw, clock=later) as other_broker:
        if shell.startswith("sync"):
            with (
                MongoClient[Any](address) as client,
                mongoq.Broker(client[database]["mongoq"], clock=stopped) as broker,
            ):
                yield Pair(shell, proxy, Awaited(broker), other_broker)
        else:
            async with (
                AsyncMongoClient[Any](address) as own,
                mongoq.AsyncBroker(own[database]["mongoq"], clock=stopped) as aio,
            ):
                yield Pair(shell, proxy, aio, other_broker)


def lost_of(error: BaseException) -> list[Any]:
    return list(error.failed.values()) if isinstance(error, mongoq.BatchIncomplete) else [error]


@pytest.mark.parametrize("case", [*ALONE, COMMIT_MANY, SHARED], ids=lambda case: case.name)
async def test_what_another_process_has_settled_is_no_success(pair: Pair, case: Case) -> None:
    queue, items = await pair.reserved(case)
    theirs = Awaited(pair.other_broker.queue("orders", history=case.history))
    claims = await theirs.reserve_many(case.number)
    assert {item.id for item in claims} == {item.id for item in items}
    await (theirs.commit_many(claims) if case is SHARED else case.settle(theirs, claims))
    pair.proxy.lose("reply", case.command)
    with pytest.raises((mongoq.ReservationLost, mongoq.BatchIncomplete)) as caught:
        await case.settle(queue, items)
    assert pair.proxy.lost >= 1
    errors = lost_of(caught.value)
    assert all(isinstance(error, mongoq.ReservationLost) for error in errors), errors
    if case.exact and pair.retries:
        assert all(error.certain for error in errors), "the server tells"


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("case", [COMMIT, MOVE], ids=lambda case: case.name)
async def test_the_server_tells_a_holder_what_its_own_command_did(pair: Pair, case: Case, kind: Kind) -> None:
    queue, items = await pair.reserved(case)
    pair.proxy.lose(kind, case.command)
    if kind == "reply" and case is COMMIT and not pair.retries:  # a deleted item leaves nothing to read
        with pytest.raises(mongoq.ReservationLost) as caught:
            await case.settle(queue, items)
        assert not caught.value.certain
    elif kind == "request" or pair.retries:
        await case.settle(queue, items)
        assert pair.proxy.lost == 1


@pytest.mark.parametrize("case", [COMMIT_MANY, MOVE_MANY], ids=lambda case: case.name)
async def test_of_a_command_for_many_what_is_gone_is_uncertain(pair: Pair, case: Case) -> None:
    """One was committed by another process, one is still reserved by it, and one was settled by the command."""
    queue, items = await pair.reserved(case)
    theirs = pair.other_broker.queue("orders")
    first, second = theirs.reserve_many(2)
    theirs.commit(first)
    pair.proxy.lose("reply", case.command)
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await case.settle(queue, items)
    certain = {id: error.certain for id, error in caught.value.failed.items()}  # type: ignore[attr-defined]
    assert certain == {item.id: case.command == "delete" and item.id == second.id for item in items}
    theirs.commit(second)


async def test_a_holder_whose_replies_are_all_lost_gets_that_error(pair: Pair) -> None:
    queue, items = await pair.reserved(COMMIT)
    pair.proxy.lose("reply", "delete", times=2 if pair.retries else 1)  # the driver sends it twice
    with pytest.raises(mongoq.ReservationLost) as caught:
        await queue.commit(items[0])
    assert not caught.value.certain
