"""Settings that stand with the queue: adopted, stored, changed, and seen by every process."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.shells import Shell
from tests.waiting import PATIENCE

DAY = timedelta(days=1)


def _stored(shell: Shell) -> Any:
    document = shell.raw.find_one({"_id": "queue:orders"})
    return None if document is None else document.get("settings")


async def test_a_handle_is_made_without_io_and_tells_its_settings(shell: Shell) -> None:
    queue = shell.queue(lease=60, history=DAY, max_retries=3, dead="graves")
    assert queue.settings == mongoq.QueueSettings("orders", timedelta(minutes=1), DAY, 3, "graves")
    assert _stored(shell) is None


@pytest.mark.every_shell("mongomock")
async def test_the_first_write_stores_what_was_given_and_nothing_else(shell: Shell) -> None:
    await shell.queue(history=DAY).push(1)
    assert _stored(shell) == {"history": 86400.0}
    await shell.queue(lease=2.5, max_retries=None).push(2)
    assert _stored(shell) == {"history": 86400.0, "lease": 2.5, "max_retries": None}


async def test_a_process_that_knows_nothing_keeps_the_history(shell: Shell) -> None:
    await shell.queue(history=DAY).push(1)
    ignorant = shell.another().queue("orders")
    item = await ignorant.reserve()
    await ignorant.commit(item)
    assert (await ignorant.get(item.id)).state == "processed"
    assert ignorant.settings.history == DAY


@pytest.mark.every_shell("mongomock")
async def test_what_a_handle_shows_holds_for_handles_without_options(shell: Shell) -> None:
    before, given, after = shell.queue(), shell.queue(history=DAY), shell.queue()
    assert before.settings == given.settings == after.settings
    await before.push(1)
    item = await after.reserve()
    await after.commit(item)
    assert (await given.get(item.id)).state == "processed"
    assert _stored(shell) == {"history": 86400.0}


async def test_the_first_write_of_a_broker_stores_what_all_its_handles_show(shell: Shell) -> None:
    copies = shell.queue("orders", history=DAY)
    shell.raw.insert_one({"_id": "queue:spoilt", "settings": 7})
    shell.queue("spoilt", history=DAY)  # its own operations tell what is wrong with it
    await shell.broker.bind("topic", "orders", "others")
    await shell.queue("topic").push(1)
    elsewhere = shell.another().queue("orders")
    item = await elsewhere.reserve()
    await elsewhere.commit(item)
    assert (await copies.get(item.id)).state == "processed"


async def test_what_is_stored_wins_with_a_warning(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    await shell.queue(history=DAY).push(1)
    with caplog.at_level(logging.WARNING, "mongoq.settings"):
        queue = shell.another().queue("orders", history=None, lease=7)
        await queue.commit(await queue.reserve())
        await queue.push(2)
    assert queue.settings.history == DAY
    assert queue.settings.lease == timedelta(seconds=7)
    (warning,) = caplog.records
    assert "history=1 day, 0:00:00, not by the None" in warning.getMessage()
    assert _stored(shell) == {"history": 86400.0, "lease": 7.0}


async def test_configure_changes_it_for_every_handle(shell: Shell) -> None:
    old = shell.queue(history=DAY, max_retries=5)
    await old.push(1)
    changed = await shell.another().queue("orders").configure(history=None, lease=90, dead="graves")
    assert changed == mongoq.QueueSettings("orders", timedelta(seconds=90), None, 5, "graves")
    deadline = time.monotonic() + PATIENCE
    item = await old.reserve()
    while item.lease_until != shell.clock.now() + timedelta(seconds=90):  # it reads them once a second
        assert time.monotonic() < deadline
        time.sleep(0.05)
        await old.release(item)
        item = await old.reserve()
    await old.bury(item)
    assert await shell.queue("graves").size() == 1
    assert old.settings == changed


async def test_a_lower_limit_of_retries_holds_at_once(shell: Shell) -> None:
    queue = shell.queue(max_retries=5)
    await queue.push(1)
    for _ in range(2):
        await queue.rollback(await queue.reserve())
    await queue.configure(max_retries=1)
    assert await queue.reserve() is None
    (dead,) = await queue.dead.peek()
    assert dead.origin.reason == "retries exhausted"


@pytest.mark.every_shell("mongomock")
async def test_a_new_retention_holds_for_what_is_processed_from_then_on(shell: Shell) -> None:
    queue = shell.queue(history=DAY)
    first, second = await queue.push(1), await queue.push(2)
    await queue.commit(await queue.reserve())
    await queue.configure(history=60)
    await queue.commit(await queue.reserve())
    expires = {each["_id"]: each["expires"] for each in shell.raw.find({"q": "orders"})}
    assert expires == {first: shell.clock.now() + DAY, second: shell.clock.now() + timedelta(minutes=1)}


@pytest.mark.parametrize(("history", "retention"), [(60, timedelta(minutes=1)), (None, timedelta(0))])
async def test_and_for_what_is_kept_already_when_asked(shell: Shell, history: Any, retention: timedelta) -> None:
    queue = shell.queue(history=DAY)
    plain = await queue.push(1)
    remembered = await queue.push(2, id=ObjectId(), once=3600)
    for _ in range(2):
        await queue.commit(await queue.reserve())
    await queue.configure(history=history, existing=True)
    expires = {each["_id"]: each["expires"] for each in shell.raw.find({"q": "orders"})}
    assert expires == {plain: shell.clock.now() + retention, remembered: shell.clock.now() + timedelta(hours=1)}


async def test_a_pause_and_settings_do_not_disturb_each_other(shell: Shell) -> None:
    queue = shell.queue(history=DAY)
    await queue.pause()
    assert _stored(shell) == {"history": 86400.0}
    await queue.configure(history=60)
    assert await queue.is_paused()
    await queue.resume()
    assert _stored(shell) == {"history": 60.0}


async def test_options_of_a_later_version_are_left_alone(shell: Shell) -> None:
    shell.raw.insert_one({"_id": "queue:orders", "settings": {"colour": "red", "lease": 5}})
    queue = shell.queue()
    await queue.push(1)
    assert (await queue.reserve()).lease_until == shell.clock.now() + timedelta(seconds=5)
    await queue.configure(lease=6)
    assert _stored(shell) == {"colour": "red", "lease": 6.0}


@pytest.mark.parametrize("settings", [{"lease": "long"}, {"dead": "orders"}, 7], ids=str)
async def test_settings_of_another_program_are_named_and_nothing_is_done(shell: Shell, settings: Any) -> None:
    shell.raw.insert_one({"_id": "queue:orders", "settings": settings})
    with pytest.raises(mongoq.CollectionUnsuitable, match="queue 'orders'") as caught:
        await shell.queue(history=60).push(1)
    assert "mend 'queue:orders'" in str(caught.value)
    assert shell.raw.count_documents({"q": "orders"}) == 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "configure"),
    ({"lease": 0}, "lease"),
    ({"lease": "soon"}, "lease"),
    ({"history": 0}, "history"),
    ({"history": float("nan")}, "history"),
    ({"max_retries": -1}, "max_retries"),
    ({"max_retries": True}, "max_retries"),
    ({"dead": "orders"}, "dead"),
    ({"dead": 3}, "dead"),
    ({"lease": 5, "existing": True}, "existing"),
    ({"history": 5, "existing": 1}, "existing"),
    ({"max_retries": 3, "dead": None}, "max_retries"),
]


async def test_options_that_cannot_be_used_are_named_and_nothing_is_written(shell: Shell) -> None:
    for options, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await shell.queue().configure(**options)
        assert caught.value.argument == argument
    assert _stored(shell) is None
