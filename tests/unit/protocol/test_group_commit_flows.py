"""Flows of callers who share commands: what each gets, without a server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from pymongo.errors import OperationFailure

from mongoq.model.encoding.codec import codec_options
from mongoq.model.envelope import new_envelope
from mongoq.model.outcomes import Move
from mongoq.protocol import group_commit
from mongoq.protocol.claim.reserve import NotYet
from mongoq.protocol.flow import Command, Shared
from mongoq.protocol.settle.move import Destination
from mongoq.protocol.state.batcher import Batchers
from tests.unit.scripted import NOW, TOKEN, context, found_raw, matched, play, reserved_item

LEASE = timedelta(seconds=30)
IDS = [ObjectId() for _ in range(3)]


def shared_context(**options: Any) -> Any:
    queue = context(**options)
    queue.broker.batchers = Batchers()
    return queue


def test_those_for_whom_others_left_nothing_ask_again() -> None:
    queue = shared_context()

    def claimed(command: Command[Any], *ids: ObjectId) -> list[Any]:
        mine = command.arguments["update"]["$set"]
        return [{**reserved_item(_id=id)._document, **mine} for id in ids]

    flow = group_commit._claim_for_all([(queue, LEASE)] * 3)
    next(flow)
    documents: list[Any] = [bson.encode(reserved_item(_id=id)._document) for id in IDS]  # they are read again
    claim: Any = flow.send((documents, 0))
    flow.send(matched(2))
    left_over = flow.send({"firstBatch": claimed(claim, *IDS[:2]), "id": 0})
    assert "find" in left_over.arguments["command"]  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as stop:
        flow.send({"firstBatch": [], "id": 0})
    first, second, third = stop.value.value
    assert [first.id, second.id] == IDS[:2]
    assert isinstance(third, NotYet)


def pushed(id: ObjectId) -> bytes:
    envelope = new_envelope("orders", id, id=id, when=NOW, priority=0, headers=None, once=None)
    return bson.encode(envelope, codec_options=codec_options())


@pytest.mark.parametrize("beside", ["nothing", "one under way", "one that has ended"])
def test_only_what_another_process_takes_ends_reading_ahead(beside: str) -> None:
    """Of a claim of a single item of this one nobody knows what it takes, until it has it."""
    queue = shared_context()
    flow: Any = group_commit._claim_for_all([(queue, LEASE)] * 2)
    next(flow)
    single = group_commit._claim_for_all([(queue, LEASE)])
    if beside != "nothing":
        next(single)
    claim = flow.send(([pushed(id) for id in IDS[:2]], 0))
    assert claim.arguments["filter"]["by"] is None
    if beside == "one that has ended":
        with pytest.raises(StopIteration):
            single.send(None)
    flow.send(1)  # of two
    assert (queue.state.prefetch.closed_until > 0) == (beside == "nothing")
    flow.close()
    assert not queue.state.prefetch.claimed_keys


def test_what_is_put_first_while_the_head_is_read_takes_nothing_from_those_who_wait() -> None:
    queue = shared_context()
    flow: Any = group_commit._claim_for_all([(queue, LEASE)] * 2)
    next(flow)
    queue.state.prefetch.drop_behind(-5, NOW)
    claim = flow.send(([pushed(id) for id in IDS], 0))
    assert claim.arguments["filter"]["_id"] == {"$in": IDS[:2]}
    assert not queue.state.prefetch.items, "what stands behind it is read again"


@pytest.mark.parametrize("is_found", [True, False])
def test_where_all_that_was_read_is_about_to_be_taken_no_caller_gets_nothing(is_found: bool) -> None:
    """Not all fits into a reply, and what is under way may fail: a claim of a single item finds out."""
    queue = shared_context()
    queue.state.prefetch.begin_claim([id.binary for id in IDS])
    flow: Any = group_commit._claim_for_all([(queue, LEASE)] * 2)
    next(flow)
    flow.send(([pushed(id) for id in IDS], 0))
    single = flow.send({"firstBatch": [{"_id": id, "priority": 0, "when": NOW} for id in IDS], "id": 0})
    assert single.method == "find_one_and_update"
    assert queue.state.prefetch.singles
    with pytest.raises(StopIteration) as stop:
        flow.send({**reserved_item()._document, "attempts": 0, "reserved": False, "when": NOW} if is_found else None)
    first, second = stop.value.value
    assert (first is not None) == is_found
    assert isinstance(second, NotYet) == is_found
    assert not queue.state.prefetch.closed_until > 0


def test_a_claim_that_the_server_ended_halfway_gives_back_what_it_took() -> None:
    queue, interrupted = shared_context(), OperationFailure("interrupted", 237)
    flow: Any = group_commit._claim_for_all([(queue, LEASE)] * 2)
    next(flow)
    claim = flow.send(([pushed(id) for id in IDS[:2]], 0))
    back = flow.throw(interrupted)
    ((kind, statement),) = back.arguments["requests"]
    assert (kind, statement["filter"]["token"]) == ("UpdateMany", claim.arguments["update"]["$set"]["token"])
    with pytest.raises(OperationFailure) as raised:
        flow.throw(OperationFailure("neither can that be done", 13))
    assert raised.value is interrupted
    assert not queue.state.prefetch.claimed_keys


def test_an_empty_queue_is_reported_to_all() -> None:
    _, results = play(group_commit._claim_for_all([(shared_context(), LEASE)] * 3), [found_raw()])
    assert results == [None] * 3


def test_a_caller_asks_again_until_it_gets_an_answer() -> None:
    flow = group_commit.reserve(shared_context(), lease=None, wait=None, on_invalid="bury")
    first, again = next(flow), flow.throw(NotYet())
    assert isinstance(first, Shared)
    assert isinstance(again, Shared)
    assert again.batcher is first.batcher
    with pytest.raises(StopIteration) as stop:
        flow.send(reserved_item())
    assert stop.value.value.token == TOKEN


def test_a_lone_caller_sends_the_command_it_would_send_anyway() -> None:
    (claim,), results = play(group_commit._claim_for_all([(shared_context(), LEASE)]), [None])
    assert (claim.method, results) == ("find_one_and_update", [None])


OPTIONS: dict[str, Any] = {"priority": 0, "on_duplicate": "keep"}
OPTIONS |= dict.fromkeys(("delay", "when", "headers", "key", "id", "once"))


@pytest.mark.parametrize("own_options", [{}, {"headers": {"a": 1}}], ids=["plain", "headers"])
@pytest.mark.parametrize("session", [None, object()])
def test_only_what_is_in_no_transaction_shares(session: Any, own_options: dict[str, Any]) -> None:
    queue, item = shared_context(), reserved_item()
    options = OPTIONS | own_options
    for flow in (
        group_commit.push(queue, 1, session=session, **options),
        group_commit.commit(queue, item, session=session),
        group_commit.move(queue, item, Destination("next", queue.codec), Move("next"), session=session),
    ):
        assert isinstance(next(flow), Command if session else Shared)
        flow.close()
