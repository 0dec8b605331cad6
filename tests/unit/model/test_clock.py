"""The server's clock, reckoned locally: pure, on clocks that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import mongoq
from mongoq.model.clock import EPOCH, REMEASURE_SECONDS, Sample, ServerClock, VirtualClock

BASE = 1_700_000_000.0


class Machine:
    """Local clock, wall clock and server clock, in seconds."""

    def __init__(self, *, ahead: float = 0.0) -> None:
        self.local = 1000.0
        self.wall = BASE + ahead
        self.server = BASE
        self.clock = ServerClock(local=lambda: self.local, wall=lambda: self.wall)

    def pass_time(self, seconds: float) -> None:
        self.local += seconds
        self.wall += seconds
        self.server += seconds

    def sample(self, trip: float = 0.002) -> Sample:
        sent_at = self.local
        at = self.server + trip / 2
        self.pass_time(trip)
        milliseconds = int(at * 1000)
        return Sample(sent_at, self.local, EPOCH + timedelta(milliseconds=milliseconds))

    def measure(self, trip: float = 0.002) -> None:
        self.clock.adopt([self.sample(trip)])

    def error(self) -> float:
        """Seconds by which the clock is ahead of the server."""
        return (self.clock.now() - EPOCH).total_seconds() - self.server


@pytest.mark.parametrize("ahead", [0, 3600, -3600, 86400 * 400])
def test_a_machine_whose_clock_is_off_behaves_like_any_other(ahead: float) -> None:
    machine = Machine(ahead=ahead)
    machine.measure()
    machine.pass_time(30)
    assert abs(machine.error()) < 0.003


def test_the_shortest_round_trip_wins() -> None:
    machine = Machine()
    slow = Sample(machine.local, machine.local + 2, EPOCH + timedelta(seconds=machine.server + 1.9))
    machine.clock.adopt([slow, machine.sample(), slow])
    assert abs(machine.error()) < 0.003


def test_it_is_measured_at_first_every_minute_after_a_jump_and_when_disturbed() -> None:
    machine = Machine()
    assert machine.clock.due()
    machine.measure()
    assert not machine.clock.due()
    machine.pass_time(59)
    assert not machine.clock.due()
    machine.pass_time(2)
    assert machine.clock.due()
    machine.measure()
    machine.wall += 0.2
    assert not machine.clock.due()
    machine.wall += 0.1
    assert machine.clock.due()
    machine.measure()
    machine.clock.disturb()
    assert machine.clock.due()
    machine.measure()
    assert not machine.clock.due()


def test_a_measurement_that_is_put_off_is_due_again_in_a_moment() -> None:
    machine = Machine()
    machine.clock.postpone()
    assert machine.clock.due(), "the first one is not put off"
    machine.measure()
    machine.clock.disturb()
    machine.clock.postpone()
    assert not machine.clock.due()
    machine.pass_time(REMEASURE_SECONDS / 2)
    assert not machine.clock.due()
    machine.pass_time(REMEASURE_SECONDS)
    assert machine.clock.due()


def test_it_never_runs_backwards_and_catches_up_at_half_speed() -> None:
    machine = Machine()
    machine.measure()
    machine.server -= 10
    before = machine.clock.now()
    machine.measure()
    assert machine.clock.now() >= before
    assert machine.error() == pytest.approx(10, abs=0.01)
    times = []
    for _ in range(200):
        machine.pass_time(0.1)
        times.append(machine.clock.now())
    assert times == sorted(set(times)), "it stood still or ran backwards"
    assert machine.error() == pytest.approx(0, abs=0.01)
    machine.pass_time(5)
    assert machine.error() == pytest.approx(0, abs=0.01)


def test_a_correction_forward_is_taken_at_once() -> None:
    machine = Machine()
    machine.measure()
    machine.server += 10
    machine.measure()
    assert machine.error() == pytest.approx(0, abs=0.01)


def test_a_stamp_lies_before_every_other_clocks_now_and_never_runs_backwards() -> None:
    machine = Machine()
    machine.measure(trip=0.002)
    first = machine.clock.stamp()
    assert first < machine.clock.now()
    machine.measure(trip=0.5)
    assert machine.clock.stamp() >= first
    assert abs(machine.error()) < 0.3


def test_a_clock_that_was_never_measured_tells_no_time() -> None:
    with pytest.raises(mongoq.ServerUnavailable, match="never measured"):
        Machine().clock.now()


def test_the_virtual_clock_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(datetime(2024, 1, 1, tzinfo=UTC))
    assert clock.now() == clock.now() == clock.stamp()
    assert clock.advance(1.5) == datetime(2024, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert not clock.due()
    with pytest.raises(mongoq.ArgumentInvalid):
        clock.advance(-1)
    with pytest.raises(mongoq.ArgumentInvalid):
        VirtualClock(datetime(2024, 1, 1))
