"""What a failed or forked call leaves behind: items go back, and no state grows or belongs to another process."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pydantic import BaseModel
from pymongo.errors import PyMongoError

import mongoq
from mongoq.drivers.aio.driver import AioSender
from mongoq.drivers.performer_threads import ThreadPerformer
from mongoq.drivers.threads.driver import ThreadSender
from mongoq.protocol.flow import Command
from tests.proxy import Proxy


class Order(BaseModel):
    n: int


@pytest.mark.parametrize("way", ["reserve", "reserve_many"])
def test_a_call_that_buries_many_items_keeps_one_command_to_undo(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    queue = broker.queue("orders", model=Order)
    broker.queue("orders").push_many(["unfit"] * 60)
    lengths: list[int] = []
    perform = ThreadPerformer.perform

    def watch(performer: ThreadPerformer, request: Any, undo_log: Any) -> Any:
        lengths.append(len(undo_log))
        return perform(performer, request, undo_log)

    monkeypatch.setattr(ThreadPerformer, "perform", watch)
    assert not (queue.reserve() if way == "reserve" else queue.reserve_many(10))
    assert queue.dead.size() == 60
    assert len(lengths) > 10
    assert max(lengths) == 1


async def test_a_batch_whose_caller_is_cancelled_and_whose_reply_is_lost_is_given_back(
    proxy: Proxy, database: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mongoq.connect_async(proxy.uri, database=database) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(5))
        send = AioSender.send

        async def leave_first(sender: AioSender, command: Command[Any]) -> Any:
            if command.method == "update_many" and not claim.done():
                claim.cancel()
                await asyncio.sleep(0)
            return await send(sender, command)

        monkeypatch.setattr(AioSender, "send", leave_first)
        proxy.lose("reply", "update")
        claim = asyncio.create_task(queue.reserve_many(5, lease=600))
        with pytest.raises(asyncio.CancelledError):
            await claim
        while raw.count_documents({"reserved": True}) or not proxy.lost:
            await asyncio.sleep(0.02)
    assert sorted(document["attempts"] for document in raw.find({"q": "orders"})) == [0] * 5


SECONDS = 1.0
"""Deadline of a caller; on a machine that is too busy for it, nothing is taken at all."""


@pytest.fixture
def block_finds(client: Any, database: str) -> Iterator[Any]:
    """Let the server hold back the answers to finds, beyond the deadline of a caller with this application name."""
    data = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 2000 * SECONDS, "appName": database}

    def switch(mode: str = "alwaysOn") -> None:
        client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)

    yield switch
    switch("off")


def test_a_batch_whose_caller_has_no_time_left_is_given_back(
    uri: str, database: str, raw: Any, block_finds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mongoq.connect(f"{uri}&appName={database}", database=database) as broker:
        queue = broker.queue("orders")
        queue.push_many(range(5))
        queue.release_many(queue.reserve_many(5))  # a claim of items that are not new reads them after it
        send = ThreadSender.send

        def block_after_claim(sender: ThreadSender, command: Command[Any]) -> Any:
            reply = send(sender, command)
            if command.method == "update_many":
                block_finds()
            return reply

        monkeypatch.setattr(ThreadSender, "send", block_after_claim)
        with pytest.raises(PyMongoError), pymongo.timeout(SECONDS):
            queue.reserve_many(5, lease=600)
        block_finds("off")
    assert raw.count_documents({"reserved": True}) == 0


async def test_so_it_is_with_asyncio(
    uri: str, database: str, raw: Any, block_finds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mongoq.connect_async(f"{uri}&appName={database}", database=database) as broker:
        queue = broker.queue("orders")
        await queue.push_many(range(5))
        await queue.release_many(await queue.reserve_many(5))
        send = AioSender.send

        async def block_after_claim(sender: AioSender, command: Command[Any]) -> Any:
            reply = await send(sender, command)
            if command.method == "update_many":
                block_finds()
            return reply

        monkeypatch.setattr(AioSender, "send", block_after_claim)
        with pytest.raises(PyMongoError), pymongo.timeout(SECONDS):
            await queue.reserve_many(5, lease=600)
        block_finds("off")
    assert raw.count_documents({"reserved": True}) == 0


def in_a_child(work: Any) -> None:
    """Run a function in a forked child; it fails here when it fails there."""
    pid = os.fork()
    if not pid:
        warnings.simplefilter("ignore")  # PyMongo warns of clients in children
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_child_forked_during_a_transaction_of_another_thread_has_transactions_of_its_own(
    broker: mongoq.Broker,
) -> None:
    queue, inside, go = broker.queue("orders"), threading.Event(), threading.Event()
    queue.push(0)

    def run() -> None:
        with broker.transaction() as tx:
            queue.push(1, session=tx.session)
            inside.set()
            assert go.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(60)
    sessions = broker._driver.sessions
    try:
        in_a_child(lambda: sessions.enter(thread.ident))  # a thread of the child may get this ident
        with pytest.raises(mongoq.ArgumentInvalid):
            sessions.enter(thread.ident)
    finally:
        go.set()
        thread.join()


def test_a_child_forked_while_the_clock_is_measured_measures_for_itself(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push(0)
    context, clock = broker._context, broker._context.clock
    context.measuring = os.getpid()  # as another thread is about to

    def ask() -> None:
        clock.disturb()
        assert queue.size() == 1
        assert not clock.due()

    try:
        in_a_child(ask)
    finally:
        context.measuring = 0
