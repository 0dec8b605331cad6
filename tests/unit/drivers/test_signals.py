"""Signals that are put off, and handlers that raise while that begins or ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mongoq.drivers import signals
from mongoq.drivers.signals import DeferredSignals

FIRST, LAST = signal.SIGTERM, signal.SIGUSR1
"""In the order in which they are put off, and given back."""


class Raised(BaseException):
    """What a handler raises."""


@pytest.fixture
def received() -> Iterator[list[int]]:
    """Handlers of both signals, which note that they ran; the first time each raises."""
    received: list[int] = []

    def handler(number: int, _: Any) -> None:
        received.append(number)
        if received.count(number) == 1:
            raise Raised

    before = {number: signal.signal(number, handler) for number in (FIRST, LAST)}
    yield received
    for number, former in before.items():
        signal.signal(number, former)


def when(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something as soon as the handler of a signal was changed for the first time."""
    change, acts = signals._signal.signal, [act]

    def changed(changing: int, handler: Any) -> Any:
        former = change(changing, handler)
        if changing == number and acts:
            acts.pop()()
        return former

    monkeypatch.setattr(signals._signal, "signal", changed)


def test_a_signal_that_is_put_off_runs_at_the_end(received: list[int]) -> None:
    put_off = DeferredSignals()
    signal.raise_signal(LAST)
    assert received == []
    with pytest.raises(Raised):
        put_off.end()
    assert received == [LAST]


def test_a_handler_that_raises_as_it_begins_leaves_the_others_as_they_were(
    received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(number) for number in (FIRST, LAST)]
    when(monkeypatch, FIRST, lambda: signal.raise_signal(LAST))
    with pytest.raises(Raised):
        DeferredSignals()
    assert [signal.getsignal(number) for number in (FIRST, LAST)] == handlers
    assert received == [LAST]


def test_a_handler_that_raises_as_it_ends_leaves_no_other_put_off(
    received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(number) for number in (FIRST, LAST)]
    put_off = DeferredSignals()
    signal.raise_signal(LAST)
    when(monkeypatch, FIRST, lambda: signal.raise_signal(FIRST))
    with pytest.raises(Raised):
        put_off.end()
    assert [signal.getsignal(number) for number in (FIRST, LAST)] == handlers
    assert sorted(received) == sorted([FIRST, LAST])
