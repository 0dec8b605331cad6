"""A process that uses a queue for each reply: what it keeps of finished queues does not grow with their number."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import pytest

import mongoq
from tests.integration.commands import listened_to


def use_and_drop(broker: mongoq.Broker, names: Iterable[str]) -> None:
    """Use a queue of each name once, with a caller that waits, and drop some of them."""
    for number, name in enumerate(names):
        queue = broker.queue(name)
        queue.push(number)
        item = queue.reserve(wait=5)
        assert item is not None
        queue.commit(item)
        if number % 10 == 0:
            broker.drop_queue(name)


def test_a_process_forgets_the_queues_that_it_no_longer_uses(
    broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.core.state.wait_queue.STREAM_LINGER_SECONDS", 0)  # else the rate of the pushes counts
    use_and_drop(broker, (f"first-{number}" for number in range(1_100)))
    gc.collect()
    before = len(gc.get_objects())
    use_and_drop(broker, (f"second-{number}" for number in range(400)))
    gc.collect()
    assert len(gc.get_objects()) - before < 400


def test_two_handles_of_a_queue_agree_after_many_other_names(broker: mongoq.Broker) -> None:
    first = broker.queue("kept")
    first.pause()
    for number in range(1_100):
        broker.queue(f"other-{number}")
    assert broker.queue("kept").is_paused()
    broker.queue("kept").push(1)
    assert first.pop() is None


def test_options_of_a_forgotten_handle_hold_after_many_other_names(
    uri: str, database: str, broker: mongoq.Broker
) -> None:
    with listened_to(uri, database) as (forgetful, commands):
        forgetful.queue("strict", max_retries=2)
        for number in range(1_100):
            forgetful.queue(f"other-{number}")
        written = forgetful.queue("written")
        written.push(1)
        commands.sent.clear()
        written.push(2)
        without_topics = [next(iter(each)) for each in commands.sent if each.get("filter") != {"_id": "topics:mongoq"}]
        assert without_topics == ["insert"]  # every second a push looks at the topics as well
    strict = broker.queue("strict")
    assert strict.pop() is None
    assert strict.settings.max_retries == 2
