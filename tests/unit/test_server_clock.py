"""The time of items is the server's, and never runs backwards: seen in what is stored."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect

import mongoq
from tests.waiting import until


class Server:
    """The server's clock as its replies tell of it.

    Attributes:
        ahead: what is added to its time.
        way: seconds that a question is on its way; an answer takes no time.
        lost: how many of the next replies are lost, after each of which the clock is measured anew.
    """

    def __init__(self, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, self.way, self.lost = timedelta(0), 0.0, 0
        self._database, self._real = raw.database, Database.command
        monkeypatch.setattr(Database, "command", lambda *args, **options: self._command(*args, **options))

    def _command(self, *args: Any, **options: Any) -> Any:
        time.sleep(self.way)
        reply = self._real(*args, **options)
        if self.lost:
            self.lost -= 1
            raise AutoReconnect("the reply was lost")
        if "localTime" in reply:
            reply["localTime"] += self.ahead
        return reply

    def now(self) -> datetime:
        return self._real(self._database, "hello")["localTime"].replace(tzinfo=UTC) + self.ahead


@pytest.fixture
def server_clock(raw: Any, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(raw, monkeypatch)


def pushed_at(broker: mongoq.Broker, raw: Any) -> datetime:
    document = raw.find_one({"_id": broker.queue("orders").push(1)})
    return document["when"]


def test_an_item_is_never_due_in_the_future_of_another_process(
    server_clock: Server, broker: mongoq.Broker, raw: Any
) -> None:
    """However long the way to the server was when the clock was measured."""
    server_clock.way = 0.05
    broker.queue("orders").push(0)
    server_clock.way = 0
    for _ in range(3):
        assert pushed_at(broker, raw) <= server_clock.now()


def test_time_never_runs_backwards_and_a_correction_forward_is_taken_at_once(
    server_clock: Server, broker: mongoq.Broker, raw: Any
) -> None:
    times = [pushed_at(broker, raw)]
    for ahead in (timedelta(hours=-1), timedelta(hours=1)):
        server_clock.ahead, server_clock.lost = ahead, 1
        broker.ping()
        broker.queue("orders").size()  # measures; what was checked a moment ago is not checked again by each push
        times += [pushed_at(broker, raw) for _ in range(3)]
        until(lambda last=times[-1]: pushed_at(broker, raw) > last)  # it does not stand still either
    assert times == sorted(times)
    assert times[3] < server_clock.now() - timedelta(minutes=30)
    assert times[4] > server_clock.now() - timedelta(minutes=30)
    assert broker.queue("orders").reserve() is not None
