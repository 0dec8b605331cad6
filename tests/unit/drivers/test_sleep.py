"""Bells and those who rest on them."""

from __future__ import annotations

import threading

from mongoq.drivers.sleep import rest
from mongoq.protocol.flow import WakeEvent
from tests.waiting import until


def test_a_bell_that_two_ring_at_once_wakes_and_troubles_neither() -> None:
    event = WakeEvent()
    resting = threading.Thread(target=rest, args=(event, 30))
    resting.start()
    until(lambda: event.alarm is not None)
    alarm = event.alarm  # both have taken it, before either has put it out
    assert alarm is not None
    alarm()
    alarm()
    resting.join(10)
    assert not resting.is_alive()
