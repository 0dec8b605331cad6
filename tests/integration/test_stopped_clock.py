"""A process whose clocks stand still longer than its lease, and whose replies are lost, reports no success of others.

All clocks of a paused machine stop. When it goes on, its own clock says that its lease still runs, while another
process has taken the item over and has settled it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

import mongoq
from mongoq.model.clock import ServerClock
from tests.proxy import Kind, Proxy
from tests.shells import Awaited

START = datetime(2100, 1, 1, tzinfo=UTC)
LEASE = 30.0
DATE = datetime(2100, 6, 1, tzinfo=UTC)
SHELLS = ["sync", "sync without retries", "aio", "aio without retries"]

Settle = Callable[[Any, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """How items are settled, and the command whose reply is lost.

    ``exact``: each command settles one item, so a server that keeps records of writes tells what it did.
    """

    name: str
    settle: Settle
    command: str = "delete"
    number: int = 1
    exact: bool = True
    history: float | None = None
    apart: bool = False


async def shared(queue: Any, items: Any) -> Any:
    """Commit each by a call of its own, and raise what they come to as ``commit_many`` does."""
    results = await asyncio.gather(*(queue.commit(item) for item in items), return_exceptions=True)
    failed = {item.id: error for item, error in zip(items, results, strict=True) if isinstance(error, Exception)}
    if failed:
        raise mongoq.BatchIncomplete("orders", [item.id for item in items if item.id not in failed], failed)


CASES = [
    Case("commit", lambda q, items: q.commit(items[0])),
    Case("kept commit", lambda q, items: q.commit(items[0]), "update", history=60),
    Case("rollback", lambda q, items: q.rollback(items[0]), "update"),
    Case("rollback to the end of the lease", lambda q, items: q.rollback(items[0], delay=LEASE), "update"),
    Case("release", lambda q, items: q.release(items[0]), "update"),
    Case("bury", lambda q, items: q.bury(items[0], reason="bad"), "update"),
    Case("move", lambda q, items: q.move(items[0], "next"), "update"),
    Case("move to a date", lambda q, items: q.move(items[0], "next", when=DATE), "update"),
    Case("commit of many", lambda q, items: q.commit_many(items), number=3, exact=False),
    Case("commit of many, each reserved alone", lambda q, items: q.commit_many(items), number=3, apart=True),
    Case("commits that share a command", shared, number=3, exact=False),
    Case(
        "move of many to a date",
        lambda q, items: q.move_many([(item, mongoq.Move("next", when=DATE)) for item in items]),
        "update",
        number=3,
        exact=False,
    ),
]


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
        if case.number > 1 and not case.apart:
            return queue, await queue.reserve_many(case.number, lease=LEASE)
        return queue, [await queue.reserve(lease=LEASE) for _ in range(case.number)]


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


@pytest.fixture(params=SHELLS)
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


async def errors_of(call: Awaitable[Any]) -> list[Any]:
    """Return the errors of the items that a call may not have settled."""
    try:
        await call
    except (mongoq.ReservationLost, mongoq.BatchIncomplete) as error:
        return lost_of(error)
    return []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("how", ["settled alike", "committed"])
async def test_what_another_process_has_settled_is_no_success(pair: Pair, case: Case, how: str) -> None:
    queue, items = await pair.reserved(case)
    theirs = Awaited(pair.other_broker.queue("orders", history=case.history))
    claims = [await theirs.reserve() for _ in items]
    assert {item.id for item in claims} == {item.id for item in items}
    if how == "committed" or case.settle is shared:
        await theirs.commit_many(claims)
    else:
        await case.settle(theirs, claims)
    pair.proxy.lose("reply", case.command)
    with pytest.raises((mongoq.ReservationLost, mongoq.BatchIncomplete)) as caught:
        await case.settle(queue, items)
    assert pair.proxy.lost == 1
    errors = lost_of(caught.value)
    assert all(isinstance(error, mongoq.ReservationLost) for error in errors), errors
    if case.exact and pair.retries:
        assert all(error.certain for error in errors), "the server tells"


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("case", [case for case in CASES if case.exact], ids=lambda case: case.name)
async def test_the_server_tells_a_holder_what_its_own_command_did(pair: Pair, case: Case, kind: Kind) -> None:
    queue, items = await pair.reserved(case)
    pair.proxy.lose(kind, case.command)
    errors = await errors_of(case.settle(queue, items))
    assert not any(error.certain for error in errors)
    if pair.retries or kind == "request":
        assert not errors
    elif case.command == "delete":
        assert errors
    assert pair.proxy.lost == 1


TOGETHER = [
    pytest.param(shell, case, id=f"{shell}-{case.name}")
    for shell in SHELLS
    for case in CASES
    if not case.exact and (shell.startswith("aio") or case.settle is not shared)
]


@pytest.mark.parametrize(("pair", "case"), TOGETHER, indirect=["pair"])
async def test_of_a_command_for_many_what_is_gone_is_uncertain(pair: Pair, case: Case) -> None:
    """One was committed by another process, one is still reserved by it, and one was settled by the command."""
    queue, items = await pair.reserved(case)
    theirs = pair.other_broker.queue("orders")
    first, second = theirs.reserve(), theirs.reserve()
    assert first is not None
    assert second is not None
    theirs.commit(first)
    pair.proxy.lose("reply", case.command)
    with pytest.raises(mongoq.BatchIncomplete) as caught:
        await case.settle(queue, items)
    certain = {id: error.certain for id, error in caught.value.failed.items()}  # type: ignore[attr-defined]
    assert certain == {item.id: case.command == "delete" and item.id == second.id for item in items}
    theirs.commit(second)


async def test_a_holder_whose_replies_are_all_lost_gets_that_error(pair: Pair) -> None:
    queue, items = await pair.reserved(CASES[0])
    pair.proxy.lose("reply", "delete", times=2 if pair.retries else 1)  # the driver sends it twice
    with pytest.raises(mongoq.ReservationLost) as caught:
        await queue.commit(items[0])
    assert not caught.value.certain


class Standing:
    """The clocks of a machine, which stand still while it is paused."""

    def __init__(self) -> None:
        self._missed = 0.0
        self._since: float | None = None

    def pause(self) -> None:
        self._since = time.monotonic()

    def go_on(self) -> None:
        assert self._since is not None
        self._missed += time.monotonic() - self._since
        self._since = None

    def local(self) -> float:
        return (self._since or time.monotonic()) - self._missed

    def wall(self) -> float:
        return time.time() - time.monotonic() + self.local()


@pytest.fixture
def paused(proxy: Proxy, database: str, impatient: None) -> Iterator[tuple[Standing, mongoq.Broker]]:
    standing = Standing()
    clock = ServerClock(local=standing.local, wall=standing.wall)
    with (
        MongoClient[Any](proxy.uri_with(serverMonitoringMode="poll", retryWrites="false")) as client,
        mongoq.Broker(client[database]["mongoq"], clock=clock) as broker,
    ):
        yield standing, broker


@pytest.mark.parametrize("batch", [False, True])
def test_a_paused_machine_believes_in_its_lease_and_is_not_trusted(
    paused: tuple[Standing, mongoq.Broker], proxy: Proxy, broker: mongoq.Broker, batch: bool
) -> None:
    standing, stopped = paused
    queue = stopped.queue("orders")
    queue.push_many([1, 2])
    items = queue.reserve_many(2, lease=3)
    standing.pause()
    theirs = broker.queue("orders")
    claims = [theirs.reserve(wait=60), theirs.reserve(wait=60)]
    theirs.commit_many(claims)  # type: ignore[arg-type]
    standing.go_on()
    proxy.lose("reply", "delete")
    with pytest.raises((mongoq.ReservationLost, mongoq.BatchIncomplete)) as caught:
        queue.commit_many(items) if batch else queue.commit(items[0])
    errors = lost_of(caught.value)
    assert len(errors) == (2 if batch else 1)
    assert not errors[0].certain
