"""A queue that is resumed at the worst moment: when a consumer has read that it is paused, and hears of nothing yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mongoq
from tests.integration.commands import listened_to
from tests.waiting import PATIENCE


def test_a_queue_that_is_resumed_before_the_stream_opens_wakes(uri: str, database: str) -> None:
    with (
        mongoq.connect(uri, database=database) as other_broker,
        listened_to(uri, database) as (broker, commands),
    ):
        other_queue = other_broker.queue("orders")
        other_queue.push(1)
        other_queue.pause()
        resumed = []

        def resume_once(name: str, body: Mapping[str, Any]) -> None:
            if name == "aggregate" and "$changeStream" in str(body) and not resumed:
                resumed.append(True)
                other_queue.resume()

        commands.before = resume_once
        item = broker.queue("orders").reserve(wait=PATIENCE)  # a look would come minutes later
        assert item is not None
        assert resumed
