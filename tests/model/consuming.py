"""Rules: what consumers do, those included that come too late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

import mongoq
from tests.model.choices import (
    ANY,
    CONSUMER,
    DELAYS,
    DUES,
    ERRORS,
    HEADERS,
    KEYS,
    LEASES,
    MASK,
    NUMBER,
    PAYLOADS,
    PRIORITIES,
    TWO,
)
from tests.model.entry import Move
from tests.model.world import Reservation, World, seconds, text_of

__all__ = ["Consuming"]

SOMEBODY_HOLDS = precondition(lambda self: any(self.consumers))

CHANGES = st.one_of(
    st.just({}),
    st.builds(lambda payload: {"payload": payload}, PAYLOADS),
    st.builds(lambda add: {"add": add}, st.integers(1, 3)),
)
"""What becomes of a payload on the way: nothing, another one, or a patch."""


def _changed(changes: dict[str, Any]) -> dict[str, Any]:
    """In the words of the product."""
    return {"patch": {"$inc": {"n": changes["add"]}}} if "add" in changes else changes


class Consuming(World):
    """Claims and settlements."""

    def of(self, reservation: Reservation) -> Any:
        return self.queues[reservation.run.queue]

    # --- claims --------------------------------------------------------------------------------

    @rule(consumer=CONSUMER, queue=ANY, lease=LEASES)
    def reserve(self, consumer: int, queue: int, lease: int | None) -> None:
        real, name = self.busy(queue)
        item, run = real.reserve(lease=lease), self.model.reserve(name, seconds(lease))
        assert (item and item.id) == (run and run.id)
        if run is not None:
            self.take(consumer, item, run)

    @rule(consumer=CONSUMER, queue=ANY, n=st.integers(1, 4), lease=LEASES)
    def reserve_many(self, consumer: int, queue: int, n: int, lease: int | None) -> None:
        real, name = self.busy(queue)
        items, runs = real.reserve_many(n, lease=lease), self.model.reserve_many(name, n, seconds(lease))
        assert [item.id for item in items] == [run.id for run in runs]
        for item, run in zip(items, runs, strict=True):
            self.take(consumer, item, run)

    @rule(queue=ANY)
    def pop(self, queue: int) -> None:
        real, name = self.busy(queue)
        item, entry = real.pop(), self.model.pop(name)
        assert (item and item.id) == (entry and entry.id)
        if entry is not None:
            self.check_item(item, entry)
            assert (item.due, item.processed, item.token) == (entry.when, self.model.now, None)

    @rule(queue=ANY, error=ERRORS, delay=DELAYS)
    def work_in_a_block(self, queue: int, error: Any, delay: int) -> None:
        """A block commits what it does, and rolls back what fails."""
        real, name = self.busy(queue)
        run = self.model.reserve(name)
        try:
            with real.reserved(delay=delay) as item:
                assert (item and item.id) == (run and run.id)
                if isinstance(error, Exception):
                    raise error
        except ValueError:
            pass
        if run is not None and isinstance(error, Exception):
            self.model.rollback(run, delay=timedelta(seconds=delay), error=text_of(error))
        elif run is not None:
            self.model.commit(run)

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER)
    def a_consumer_dies(self, consumer: int) -> None:
        for reservation in list(self.holding(consumer)):
            self.put_away(reservation)

    @rule(queue=TWO, sizes=st.lists(st.sampled_from([0, 1, 1, 2, 3]), min_size=1, max_size=4))
    def consumers_die_one_after_another(self, queue: int, sizes: list[int]) -> None:
        """Each of what it has just claimed, alone or with others, when the leases of all before are over; 0 pops."""
        for n in sizes:
            if n == 0:
                self.pop(queue)
            elif n == 1:
                self.reserve(0, queue, None)
            else:
                self.reserve_many(0, queue, n, None)
            for reservation in list(self.consumers[0]):
                self.put_away(reservation)
            self.model.now = self.clock.advance(31)
            self.they_agree()

    # --- settlements of one --------------------------------------------------------------------

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, number=NUMBER, changes=CHANGES)
    def commit(self, consumer: int, number: int, changes: dict[str, Any]) -> None:
        self._commit(self.pick(consumer, number), changes)

    def _commit(self, reservation: Reservation, changes: dict[str, Any]) -> None:
        self.settle(
            reservation,
            lambda: self.of(reservation).commit(reservation.item, **_changed(changes)),
            lambda: self.model.commit(reservation.run, **changes),
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, number=NUMBER, delay=DELAYS, error=ERRORS)
    def rollback(self, consumer: int, number: int, delay: int, error: Any) -> None:
        self._rollback(self.pick(consumer, number), delay, error)

    def _rollback(self, reservation: Reservation, delay: int, error: Any) -> None:
        self.settle(
            reservation,
            lambda: self.of(reservation).rollback(reservation.item, delay=delay, error=error),
            lambda: self.model.rollback(reservation.run, delay=timedelta(seconds=delay), error=text_of(error)),
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, number=NUMBER)
    def release(self, consumer: int, number: int) -> None:
        self._release(self.pick(consumer, number))

    def _release(self, reservation: Reservation) -> None:
        self.settle(
            reservation,
            lambda: self.of(reservation).release(reservation.item),
            lambda: self.model.release(reservation.run),
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, number=NUMBER, lease=LEASES, keep=st.booleans())
    def extend(self, consumer: int, number: int, lease: int | None, keep: bool) -> None:
        self._extend(self.pick(consumer, number), lease, keep=keep)

    def _extend(self, reservation: Reservation, lease: int | None, *, keep: bool) -> None:
        item = self.settle(
            reservation,
            lambda: self.of(reservation).extend(reservation.item, lease=lease),
            lambda: self.model.extend(reservation.run, seconds(lease)),
            ends=False,
        )
        if item is not None:
            assert item.lease_until == self.model.reserved_entry(reservation.run).when
            reservation.item = reservation.item if keep else item

    @SOMEBODY_HOLDS
    @rule(
        consumer=CONSUMER,
        number=NUMBER,
        to=ANY,
        changes=CHANGES,
        due=DUES,
        priority=st.none() | PRIORITIES,
        headers=st.just(...) | HEADERS,
        key=st.none() | KEYS,
    )
    def move(
        self, *, consumer: int, number: int, to: int, changes: Any, due: Any, priority: Any, headers: Any, key: Any
    ) -> None:
        self._move(self.pick(consumer, number), to, changes, due, priority=priority, headers=headers, key=key)

    def _move(self, reservation: Reservation, to: int, changes: Any, due: Any, **extras: Any) -> None:
        when, options = self.due(due)
        options |= {name: value for name, value in extras.items() if value is not ...} | _changed(changes)
        way = Move(self.names[to], when, **changes, **extras)
        self.settle(
            reservation,
            lambda: self.of(reservation).move(reservation.item, self.names[to], **options),
            lambda: self.model.move(reservation.run, way),
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, number=NUMBER, reason=st.sampled_from([None, "why"]), error=ERRORS)
    def bury(self, consumer: int, number: int, reason: str | None, error: Any) -> None:
        self._bury(self.pick(consumer, number), reason, error)

    def _bury(self, reservation: Reservation, reason: str | None, error: Any) -> None:
        if self.rules_of[reservation.run.queue].dead is None:
            return
        self.settle(
            reservation,
            lambda: self.of(reservation).bury(reservation.item, reason=reason, error=error),
            lambda: self.model.bury(reservation.run, reason=reason, error=text_of(error)),
        )

    @precondition(lambda self: self.past)
    @rule(number=NUMBER, what=st.integers(0, 5), to=TWO)
    def come_too_late(self, number: int, what: int, to: int) -> None:
        """Whoever lost an item, or has settled it, changes nothing; a dead consumer may turn out to be alive."""
        reservation = self.past[number % len(self.past)]
        late = [
            lambda: self._commit(reservation, {}),
            lambda: self._rollback(reservation, 0, "late"),
            lambda: self._release(reservation),
            lambda: self._extend(reservation, None, keep=True),
            lambda: self._move(reservation, to, {}, None),
            lambda: self._bury(reservation, "late", None),
        ]
        late[what]()

    # --- settlements of many -------------------------------------------------------------------

    def late(self, reservations: list[Reservation], number: int | None) -> list[Reservation]:
        """With somebody else's old reservation among them."""
        ids = {reservation.run.id for reservation in reservations}
        old = [
            reservation
            for reservation in self.past
            if reservations and reservation.run.queue == reservations[0].run.queue and reservation.run.id not in ids
        ]
        return reservations if number is None or not old else [*reservations, old[number % len(old)]]

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, mask=MASK, late=st.none() | NUMBER)
    def commit_many(self, consumer: int, mask: int, late: int | None) -> None:
        mine = self.some(consumer, mask)
        # none that was kept at this very moment, since nobody can tell whether this call or the one before did it
        reservations = [
            reservation
            for reservation in self.late(mine, late)
            if reservation in mine or not self.model.was_just_kept(reservation.run.id)
        ]
        items = [reservation.item for reservation in reservations]
        real = self.of(reservations[0])
        self.settle_many(
            reservations, lambda: real.commit_many(items), lambda reservation: self.model.commit(reservation.run)
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, mask=MASK, late=st.none() | NUMBER, delay=DELAYS, error=ERRORS)
    def rollback_many(self, consumer: int, mask: int, late: int | None, delay: int, error: Any) -> None:
        reservations = self.late(self.some(consumer, mask), late)
        items, failure = [reservation.item for reservation in reservations], text_of(error)
        self.settle_many(
            reservations,
            lambda: self.of(reservations[0]).rollback_many(items, delay=delay, error=error),
            lambda reservation: self.model.rollback(reservation.run, delay=timedelta(seconds=delay), error=failure),
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, mask=MASK, late=st.none() | NUMBER)
    def release_many(self, consumer: int, mask: int, late: int | None) -> None:
        reservations = self.late(self.some(consumer, mask), late)
        items = [reservation.item for reservation in reservations]
        real = self.of(reservations[0])
        self.settle_many(
            reservations, lambda: real.release_many(items), lambda reservation: self.model.release(reservation.run)
        )

    @SOMEBODY_HOLDS
    @rule(consumer=CONSUMER, mask=MASK, late=st.none() | NUMBER, lease=LEASES)
    def extend_many(self, consumer: int, mask: int, late: int | None, lease: int | None) -> None:
        reservations = self.late(self.some(consumer, mask), late)
        items = [reservation.item for reservation in reservations]
        extended = self.settle_many(
            reservations,
            lambda: self.of(reservations[0]).extend_many(items, lease=lease),
            lambda reservation: self.model.extend(reservation.run, seconds(lease)),
            ends=False,
        )
        for reservation, item in zip(reservations, extended or items, strict=True):
            reservation.item = item

    @SOMEBODY_HOLDS
    @rule(
        consumer=CONSUMER,
        mask=MASK,
        late=st.none() | NUMBER,
        ways=st.lists(st.tuples(ANY, CHANGES, DUES), min_size=1, max_size=2),
    )
    def move_many(self, consumer: int, mask: int, late: int | None, ways: list[Any]) -> None:
        reservations = self.late(self.some(consumer, mask), late)
        moves, model_moves = [], {}
        for place, reservation in enumerate(reservations):
            to, changes, due = ways[place % len(ways)]
            when, options = self.due(due)
            moves.append((reservation.item, mongoq.Move(self.names[to], **options, **_changed(changes))))
            model_moves[reservation.run.id] = Move(self.names[to], when, **changes)
        self.settle_many(
            reservations,
            lambda: self.of(reservations[0]).move_many(moves),
            lambda reservation: self.model.move(reservation.run, model_moves[reservation.run.id]),
        )
