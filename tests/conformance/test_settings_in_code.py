"""Settings in code that differ from the stored ones: which of them win, and what the log says."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

import mongoq
from tests.shells import Shell

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mongoq.settings")


def _stored(shell: Shell, name: str = "orders") -> Any:
    return shell.raw.find_one({"_id": f"queue:{name}"})


def _lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_what_code_gives_replaces_what_is_stored_and_nothing_else(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    old = shell.queue(lease=30, history=DAY, max_retries=3, dead="graves")
    await old.push(1)
    await old.pause()
    await shell.another(settings="code").queue("orders", lease=45, history=None, max_retries=3).push(2)
    document = _stored(shell)
    assert document["settings"] == {"lease": 45.0, "history": None, "max_retries": 3, "dead": "graves"}
    assert document["paused"] is True
    assert _lines(caplog) == [
        ("INFO", "queue 'orders': stored history 1 day, 0:00:00 -> None, as given in code (settings=\"code\")"),
        ("INFO", "queue 'orders': stored lease 0:00:30 -> 0:00:45, as given in code (settings=\"code\")"),
    ]


async def test_options_that_are_not_stored_are_added_as_ever(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    await shell.queue(lease=30).push(1)
    await shell.another(settings="code").queue("orders", lease=30, max_retries=None).push(2)
    assert _stored(shell)["settings"] == {"lease": 30.0, "max_retries": None}
    assert _lines(caplog) == []


async def test_two_processes_whose_codes_differ_write_once_each(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    process_a, process_b = shell.another(settings="code"), shell.another(settings="code")
    for _ in range(5):  # with a handle made anew each time, as a web server has it for each request
        await process_a.queue("orders", lease=11).push(1)
        await process_b.queue("orders", lease=22).push(2)
    assert _stored(shell)["settings"] == {"lease": 22.0}
    assert [level for level, _ in _lines(caplog)].count("INFO") == 1
    assert [level for level, _ in _lines(caplog)].count("WARNING") <= 1


async def test_what_a_person_configures_holds_until_the_next_process(shell: Shell) -> None:
    process = shell.another(settings="code")
    await process.queue("orders", lease=11).push(1)
    await shell.queue().configure(lease=99)
    await process.queue("orders", lease=11).push(2)
    assert _stored(shell)["settings"] == {"lease": 99.0}
    await shell.another(settings="code").queue("orders", lease=11).push(3)
    assert _stored(shell)["settings"] == {"lease": 11.0}


async def test_one_warning_for_a_queue_and_a_process_names_all_options(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    await shell.queue(lease=30, history=DAY, max_retries=4).push(1)
    await shell.queue("others", lease=30).push(1)
    caplog.clear()
    for _ in range(3):
        for broker in (shell.broker, shell.another()):
            await broker.queue("orders", lease=5, history=None, max_retries=4).push(2)
            await broker.queue("others", lease=6).push(2)
    (of_orders, of_others) = _lines(caplog)
    assert of_orders[0] == of_others[0] == "WARNING"
    assert "lease=0:00:30, not by the 0:00:05 given in code" in of_orders[1]
    assert "history=1 day, 0:00:00, not by the None given in code" in of_orders[1]
    assert "max_retries" not in of_orders[1]
    assert "queue 'others'" in of_others[1]
    assert _stored(shell)["settings"]["lease"] == 30.0


async def test_a_dead_queue_that_was_configured_keeps_its_own_dead_queue(shell: Shell) -> None:
    await shell.queue("graves").configure(dead="deeper")
    queue = shell.another(settings="code").queue("orders", dead="graves")
    await queue.push(1)
    await queue.bury(await queue.reserve())
    letter = await queue.dead.reserve()
    await queue.dead.commit(letter)
    assert _stored(shell, "graves")["settings"] == {"dead": "deeper"}


async def test_a_handle_without_options_changes_nothing(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    await shell.queue(history=DAY).push(1)
    queue = shell.another(settings="code").queue("orders")
    await queue.commit(await queue.reserve())
    assert (await queue.size("processed"), _stored(shell)["settings"]) == (1, {"history": 86400.0})
    assert _lines(caplog) == []


async def test_what_code_gives_wins_for_handles_without_options(shell: Shell) -> None:
    await shell.queue(history=DAY).push(1)
    deployed = shell.another(settings="code")
    given, plain = deployed.queue("orders", history=60), deployed.queue("orders")
    item = await plain.reserve()
    await plain.commit(item)
    assert plain.settings.history == given.settings.history == timedelta(minutes=1)
    kept = shell.raw.find_one({"_id": item.id})
    assert kept["expires"] == shell.clock.now() + timedelta(minutes=1)


async def test_options_that_are_gone_are_stored_again(shell: Shell) -> None:
    queue = shell.queue(history=DAY)
    await queue.push(1)
    shell.raw.delete_one({"_id": "queue:orders"})
    await queue.is_paused()  # finds that they are gone
    await queue.push(2)
    assert _stored(shell)["settings"] == {"history": 86400.0}


@pytest.mark.parametrize("wrong", ["Code", None, True])
def test_another_choice_is_named(uri: str, database: str, raw: Any, wrong: Any) -> None:
    makers = [
        lambda: mongoq.Broker(raw, settings=wrong),
        lambda: mongoq.connect(uri, database=database, settings=wrong),
        lambda: mongoq.connect_async(uri, database=database, settings=wrong),
    ]
    if wrong is not None:  # as the broker
        makers.append(lambda: mongoq.Worker(mongoq.Broker(raw), settings=wrong))
    for make in makers:
        with pytest.raises(mongoq.ArgumentInvalid, match="settings"):
            make()
