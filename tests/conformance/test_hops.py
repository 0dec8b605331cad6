"""Items of pipelines that go back to a queue which their trails lead through, on every shell."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq
from tests.conformance.draining import drain
from tests.shells import Shell

LARGE = b"x" * 64 * 1024
"""A payload that is too large to be kept."""


class Seats(BaseModel):
    seats: int


async def _through(
    shell: Shell, *payloads: Any, trail: Any = "payloads", dead: bool = False, **options: Any
) -> list[Any]:
    """Bring items from `raw` over `rich`, where they get another payload, to the end of `done`; return their ids."""
    pipeline = mongoq.Pipeline("trip", errors="done.dead", trail=trail)
    pipeline.stage("raw", to="rich", name="enrich")(lambda payload: {"seats": 2})
    pipeline.stage("rich", to="done", name="load")(lambda payload: mongoq.Move("done", payload="stored", priority=5))
    pipeline.sink("done", name="store")(lambda payload: mongoq.Dead("no room") if dead else None)
    await shell.queue("done").configure(history=3600)
    ids: list[Any] = await shell.queue("raw").push_many(payloads, **options)
    await drain(shell, pipeline)
    shell.clock.advance(1)
    return ids


async def _payloads(shell: Shell, queue: str) -> list[Any]:
    return [item.payload for item in await shell.queue(queue).peek(9)]


async def test_a_copy_goes_to_a_hop_with_the_payload_it_had_there(shell: Shell) -> None:
    (id,) = await _through(shell, {"seats": 1}, headers={"h": 1})
    dry = await shell.queue("done").replay(hop="rich", dry_run=True)
    assert (dry.pushed, await shell.queue("rich").size()) == (1, 0)
    result = await shell.queue("done").replay(hop="rich")
    assert (result.found, result.pushed, result.refused) == (1, 1, 0)
    (copy,) = await shell.queue("rich").peek()
    assert (copy.payload, copy.headers, copy.priority) == ({"seats": 2}, {"h": 1}, 5)
    assert (copy.origin.id, copy.origin.queue, copy.trail, copy.hops) == (id, "done", (), 0)
    assert (await shell.queue("done").replay(hop="raw")).pushed == 1
    assert await _payloads(shell, "raw") == [{"seats": 1}]


async def test_the_latest_hop_out_of_the_queue_counts(shell: Shell) -> None:
    pipeline = mongoq.Pipeline("round", errors="errors", inputs="orders", trail="payloads")
    pipeline.stage("orders", to=["orders", "done"], name="count")(
        lambda n: mongoq.Move("orders" if n < 3 else "done", payload=n + 1)
    )
    pipeline.sink("done", name="end")(lambda n: None)
    await shell.queue("done").configure(history=3600)
    await shell.queue().push(0)
    await drain(shell, pipeline)
    await shell.queue("done").replay(hop="orders")
    assert await _payloads(shell, "orders") == [3]


async def test_the_id_of_a_copy_follows_from_the_hop(shell: Shell) -> None:
    await _through(shell, 1)
    queue = shell.queue("done")
    for options in [{"to": "rich"}, {"hop": "rich"}, {"hop": "rich", "label": "again"}]:
        assert (await queue.replay(**options)).pushed == 1
        again = await queue.replay(**options)
        assert (again.pushed, again.already) == (0, 1)
    assert sorted(map(str, await _payloads(shell, "rich"))) == ["stored", "{'seats': 2}", "{'seats': 2}"]


@pytest.mark.parametrize("by_id", [False, True])
async def test_items_without_such_a_hop_are_refused_and_the_others_go(shell: Shell, by_id: bool) -> None:
    ids = [*await _through(shell, 1, LARGE, 3), *await _through(shell, 4, trail=True)]
    foreign = await shell.queue("done").push("not of the pipeline")
    await shell.queue("done").pop()
    shell.raw.update_one({"_id": ids[2]}, {"$set": {"trail": [7, {"queue": "raw", "payload": "x"}, None]}})
    result = await shell.queue("done").replay(hop="raw", **({"ids": [*ids, foreign]} if by_id else {}))
    assert (result.found, result.pushed, result.refused) == (5, 1, 4)
    why = dict(result.refusals)
    assert "too large to be kept" in why[ids[1]]
    assert "does not lead through queue 'raw'" in why[ids[2]]
    assert "its payload there was not kept" in why[ids[3]]
    assert "does not lead through queue 'raw'" in why[foreign]
    assert await _payloads(shell, "raw") == [1]


async def test_a_handle_of_the_hop_checks_the_payloads_and_a_transform_is_given_them(shell: Shell) -> None:
    await _through(shell, {"seats": "many"})
    queue, typed = shell.queue("done", model=int), shell.queue("raw", model=Seats)
    result = await queue.replay(hop="raw", to=typed)
    assert (result.pushed, result.refused) == (0, 1)
    calls: list[Any] = []

    def mend(payload: Any, item: mongoq.Item[Any]) -> Any:
        calls.append((payload, item.payload, item.queue))
        return {"seats": len(payload["seats"])}

    assert (await queue.replay(hop="raw", to=typed, transform=mend)).pushed == 1
    assert calls == [({"seats": "many"}, {"seats": "many"}, "done")]
    assert (await typed.peek())[0].payload == Seats(seats=4)


@pytest.mark.parametrize("dead", [False, True])
async def test_a_hop_that_makes_no_sense_is_refused(shell: Shell, dead: bool) -> None:
    await _through(shell, 1, dead=dead)
    queue = shell.queue("done").dead if dead else shell.queue("done")
    wrong = [{"hop": ""}, {"hop": 5}, {"hop": "raw", "to": "rich"}, {"hop": "$raw"}]
    for options in [*wrong, {"hop": "done.dead"}] if dead else wrong:
        with pytest.raises(mongoq.ArgumentInvalid):
            await queue.replay(**options)
    assert await shell.queue("raw").size() == 0


async def test_a_dead_letter_goes_back_to_a_hop_with_the_payload_it_had_there(shell: Shell) -> None:
    (id,) = await _through(shell, {"seats": 1}, dead=True)
    dead = shell.queue("done").dead
    held = await dead.reserve()
    result = await dead.replay(hop="rich")
    assert (result.pushed, result.skipped) == (0, 1)
    await dead.release(held)
    result = await dead.replay(hop="rich")
    assert (result.found, result.pushed, result.refused) == (1, 1, 0)
    item = await shell.queue("rich").reserve()
    assert (item.id, item.payload, item.attempts, item.error, item.key) == (id, {"seats": 2}, 1, None, None)
    assert (item.hops, item.origin.reason, item.origin.stage) == (2, "no room", "store")
    assert [(hop.queue, hop.ended) for hop in item.trail] == [("raw", "moved"), ("rich", "moved"), ("done", "dead")]


async def test_the_queue_where_it_died_is_a_hop_too(shell: Shell) -> None:
    await _through(shell, 1, dead=True)
    shell.raw.update_one({"q": "done.dead"}, {"$set": {"payload": "spoilt"}})
    await shell.queue("done").dead.replay(hop="done", to="done")
    assert (await shell.queue("done").reserve()).payload == "stored"


@pytest.mark.parametrize("by_id", [False, True])
async def test_dead_letters_without_such_a_hop_stay(shell: Shell, by_id: bool) -> None:
    queue = shell.queue("done")
    await queue.push("not of the pipeline")
    foreign = await queue.reserve()
    await queue.bury(foreign)
    ids = await _through(shell, 1, LARGE, 3, dead=True)
    stranger = ObjectId()
    result = await queue.dead.replay(hop="raw", **({"ids": [*ids, foreign.id, stranger]} if by_id else {}))
    assert (result.found, result.pushed, result.refused, result.skipped) == (4, 2, 2, 0)
    assert result.missing == ((stranger,) if by_id else ())
    assert dict(result.refusals).keys() == {foreign.id, ids[1]}
    assert await _payloads(shell, "raw") == [1, 3]
    assert await queue.dead.size() == 2
