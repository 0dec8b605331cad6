"""Items of pipelines that go back to a queue which their trails lead through, on every shell."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel

import mongoq
from mongoq.model.trail import MAX_KEPT_PAYLOAD_BYTES
from tests.shells import Shell
from tests.staged import staged

HISTORY = {"history": 3600}


class Seats(BaseModel):
    seats: int


async def _through(shell: Shell, payload: Any, *, payloads: bool = True, dead: bool = False, **options: Any) -> Any:
    """Bring an item from `raw` over `rich`, where it gets another payload, to the end of `done`; return its id."""
    raw = staged(shell.queue("raw"), "enrich", trail=True, payloads=payloads)
    rich = staged(shell.queue("rich"), "load", trail=True, payloads=payloads)
    done = staged(shell.queue("done", **HISTORY), "store", trail=True, payloads=payloads)
    id = await raw.push(payload, **options)
    await raw.move(await raw.reserve(), "rich", payload={"seats": 2})
    await rich.move(await rich.reserve(), "done", payload="stored", priority=5)
    item = await done.reserve()
    await (done.bury(item, reason="no room") if dead else done.commit(item))
    shell.clock.advance(1)
    return id


async def test_a_copy_goes_to_a_hop_with_the_payload_it_had_there(shell: Shell) -> None:
    id = await _through(shell, {"seats": 1}, headers={"h": 1})
    result = await shell.queue("done").replay(hop="rich")
    assert (result.found, result.pushed, result.refused) == (1, 1, 0)
    (copy,) = await shell.queue("rich").peek()
    assert (copy.payload, copy.headers, copy.priority) == ({"seats": 2}, {"h": 1}, 5)
    assert (copy.origin.id, copy.origin.queue, copy.trail, copy.hops) == (id, "done", (), 0)
    assert (await shell.queue("done").replay(hop="raw")).pushed == 1
    assert [item.payload for item in await shell.queue("raw").peek()] == [{"seats": 1}]


async def test_the_latest_hop_out_of_the_queue_counts(shell: Shell) -> None:
    stage = staged(shell.queue(**HISTORY), trail=True, payloads=True)
    await stage.push(0)
    for n in range(1, 4):
        await stage.move(await stage.reserve(), "orders", payload=n)
    await shell.queue().commit(await stage.reserve())
    await shell.queue().replay(hop="orders")
    assert [item.payload for item in await shell.queue().peek()] == [2]


async def test_the_id_of_a_copy_follows_from_the_hop(shell: Shell) -> None:
    await _through(shell, 1)
    queue = shell.queue("done")
    for options in [{"to": "rich"}, {"hop": "rich"}, {"hop": "rich", "label": "again"}]:
        assert (await queue.replay(**options)).pushed == 1
        again = await queue.replay(**options)
        assert (again.pushed, again.already) == (0, 1)
    payloads = [item.payload for item in await shell.queue("rich").peek(9)]
    assert sorted(map(str, payloads)) == ["stored", "{'seats': 2}", "{'seats': 2}"]


@pytest.mark.parametrize("by_id", [False, True])
async def test_items_without_such_a_hop_are_refused_and_the_others_go(shell: Shell, by_id: bool) -> None:
    ids = [
        await _through(shell, 1),
        await _through(shell, 2, payloads=False),
        await _through(shell, b"x" * MAX_KEPT_PAYLOAD_BYTES),
        await _through(shell, 4),
    ]
    foreign = await shell.queue("done").push("not of the pipeline")
    await shell.queue("done").pop()
    result = await shell.queue("done").replay(hop="raw", **({"ids": [*ids, foreign]} if by_id else {}))
    assert (result.found, result.pushed, result.refused) == (5, 2, 3)
    why = dict(result.refusals)
    assert set(why) == {ids[1], ids[2], foreign}
    assert "its payload there was not kept" in why[ids[1]]
    assert "too large to be kept" in why[ids[2]]
    assert "does not lead through queue 'raw'" in why[foreign]
    assert [item.payload for item in await shell.queue("raw").peek(9)] == [1, 4]


async def test_a_trail_of_another_program_leads_nowhere(shell: Shell) -> None:
    id = await _through(shell, 1)
    shell.raw.update_one({"_id": id}, {"$set": {"trail": [7, {"queue": "raw", "payload": "x"}, None]}})
    assert (await shell.queue("done").replay(hop="raw")).refused == 1


async def test_a_handle_of_the_hop_checks_the_payloads(shell: Shell) -> None:
    await _through(shell, {"seats": "many"})
    queue, typed = shell.queue("done"), shell.queue("raw", model=Seats)
    result = await queue.replay(hop="raw", to=typed)
    assert (result.pushed, result.refused) == (0, 1)
    mended = await queue.replay(hop="raw", to=typed, transform=lambda payload, item: {"seats": len(payload["seats"])})
    assert mended.pushed == 1
    assert (await typed.peek())[0].payload == Seats(seats=4)


async def test_a_transform_is_given_the_payload_of_the_hop(shell: Shell) -> None:
    """Whatever the model of the queue whose history it is."""
    await _through(shell, {"seats": 1})
    calls = []
    await shell.queue("done", model=int).replay(
        hop="raw", transform=lambda payload, item: calls.append((payload, item.payload, item.queue)) or mongoq.SKIP
    )
    assert calls == [({"seats": 1}, {"seats": 1}, "done")]


@pytest.mark.parametrize("which", ["done", "dead"])
@pytest.mark.parametrize("options", [{"hop": ""}, {"hop": 5}, {"hop": "raw", "to": "rich"}, {"hop": "$raw"}])
async def test_a_hop_that_makes_no_sense_is_refused(shell: Shell, which: str, options: Any) -> None:
    await _through(shell, 1, dead=which == "dead")
    queue = shell.queue("done").dead if which == "dead" else shell.queue("done")
    with pytest.raises(mongoq.ArgumentInvalid):
        await queue.replay(**options)
    assert await shell.queue("raw").size() == 0


async def test_a_dry_run_tells_who_would_go(shell: Shell) -> None:
    await _through(shell, 1)
    result = await shell.queue("done").replay(hop="raw", dry_run=True)
    assert (result.pushed, await shell.queue("raw").size()) == (1, 0)


async def test_a_dead_letter_goes_back_to_a_hop_with_the_payload_it_had_there(shell: Shell) -> None:
    id = await _through(shell, {"seats": 1}, dead=True)
    result = await shell.queue("done").dead.replay(hop="rich")
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
    queue = shell.queue("done", **HISTORY)
    await queue.push("not of the pipeline")
    foreign = await queue.reserve()
    await queue.bury(foreign)
    ids = [await _through(shell, payload, dead=True) for payload in (1, b"x" * MAX_KEPT_PAYLOAD_BYTES, 3)]
    stranger = ObjectId()
    result = await queue.dead.replay(hop="raw", **({"ids": [*ids, foreign.id, stranger]} if by_id else {}))
    assert (result.found, result.pushed, result.refused, result.skipped) == (4, 2, 2, 0)
    assert result.missing == ((stranger,) if by_id else ())
    assert dict(result.refusals).keys() == {foreign.id, ids[1]}
    assert [item.payload for item in await shell.queue("raw").peek(9)] == [1, 3]
    assert await queue.dead.size() == 2


async def test_a_held_letter_stays(shell: Shell) -> None:
    await _through(shell, 1, dead=True)
    dead = shell.queue("done").dead
    item = await dead.reserve()
    result = await dead.replay(hop="raw")
    assert (result.pushed, result.skipped) == (0, 1)
    await dead.commit(item)


async def test_letters_do_not_go_to_the_dead_queue_itself(shell: Shell) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="hop: 'done.dead' is the dead queue itself"):
        await shell.queue("done").dead.replay(hop="done.dead")
