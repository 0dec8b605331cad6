"""The product and the model side by side: how both are driven, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from hypothesis.stateful import RuleBasedStateMachine, invariant

import mongoq
from tests.model.entry import Entry, Lost, Misfit, NoDeadQueue, Origin, Push, Refusal, Rules, Run, Taken, Used
from tests.model.past_model import Copies
from tests.model.queue_model import QueueModel

__all__ = ["CONSUMERS", "POOL", "Reservation", "World", "seconds", "text_of"]

CONSUMERS = 3
POOL = 4
"""Ids that producers push more than once."""
PAST = 12
"""Reservations that are over, kept so that somebody can come too late with them."""
REFUSALS = {
    Lost: mongoq.ReservationLost,
    Taken: mongoq.DuplicateItem,
    Used: mongoq.DuplicateItem,
    Misfit: mongoq.PatchInvalid,
    NoDeadQueue: mongoq.ArgumentInvalid,
}

FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""The server's TTL monitor goes by its own clock: nothing expires there before we say so."""


@dataclass
class Reservation:
    """A reservation: the product's item, and the model's run."""

    item: mongoq.Item[Any]
    run: Run


class World(RuleBasedStateMachine):
    """Two queues with their dead queues, with the same calls as the model."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self.raw, self.clock = raw, mongoq.VirtualClock(FAR)
        self.broker = mongoq.Broker(raw, clock=self.clock)
        self.a, self.b = "a", "b"
        self.names = [self.a, self.b, f"{self.a}.dead", f"{self.b}.dead"]
        self.rules_of = {
            self.a: Rules(timedelta(seconds=30), timedelta(seconds=60), 2, f"{self.a}.dead"),
            self.b: Rules(timedelta(seconds=10), None, 1, f"{self.b}.dead"),
            f"{self.a}.dead": Rules(),
            f"{self.b}.dead": Rules(),
        }
        self.queues: dict[str, Any] = {name: self._opened(name) for name in (self.a, self.b)}
        self.queues |= {self.queues[name].dead.name: self.queues[name].dead for name in (self.a, self.b)}
        self.model = QueueModel(self.clock.now(), self.rules_of)
        self.copies = Copies(self.model)
        self.ids = [ObjectId() for _ in range(POOL)]
        self.tokens: dict[int, Any] = {}
        self.consumers: list[list[Reservation]] = [[] for _ in range(CONSUMERS)]
        self.past: list[Reservation] = []

    def _opened(self, name: str) -> mongoq.Queue[Any]:
        rules = self.rules_of[name]
        return self.broker.queue(name, lease=rules.lease, history=rules.history, max_retries=rules.max_retries)

    def teardown(self) -> None:
        self.broker.close()
        self.raw.delete_many({})

    # --- what is chosen ------------------------------------------------------------------------

    def queue(self, number: int) -> tuple[Any, str]:
        """A queue and its name; 0 and 1 are the two, 2 and 3 their dead queues."""
        return self.queues[self.names[number]], self.names[number]

    def new(self, payload: Any, due: float | None, priority: int, headers: Any) -> tuple[Push, dict[str, Any]]:
        """What to push, for the model, and in the words of the product."""
        when, options = self.due(due)
        return Push(payload, when, priority, headers), {**options, "priority": priority, "headers": headers}

    def due(self, due: float | None) -> tuple[datetime, dict[str, Any]]:
        """When something is due: at once, after a delay, or since a time that is over."""
        if due is None:
            return self.model.now, {}
        when = self.model.now + timedelta(seconds=due)
        return when, {"delay": due} if due >= 0 else {"when": when}

    def busy(self, number: int) -> tuple[Any, str]:
        """As ``queue``, but the next one that has something to hand out, if any does."""
        names = self.names[number:] + self.names[:number]
        name = next((name for name in names if self.model.eligible(name)), names[0])
        return self.queues[name], name

    def holding(self, consumer: int) -> list[Reservation]:
        """What a consumer holds, or the next one that holds anything."""
        return next(filter(None, self.consumers[consumer:] + self.consumers[:consumer]), [])

    def pick(self, consumer: int, number: int) -> Reservation:
        holding = self.holding(consumer)
        return holding[number % len(holding)]

    def some(self, consumer: int, mask: int) -> list[Reservation]:
        """Some of what a consumer holds of one queue, each item once."""
        holding = self.holding(consumer)
        picked = [each for place, each in enumerate(holding) if mask >> place % 8 & 1] or holding[:1]
        of_one_queue = [each for each in picked if each.run.queue == picked[0].run.queue]
        return list({each.run.id: each for each in of_one_queue}.values())

    def take(self, consumer: int, item: mongoq.Item[Any], run: Run) -> None:
        """Compare what was claimed, and let a consumer hold it."""
        entry = self.model.reserved_entry(run)
        self.check_item(item, entry)
        assert (item.due, item.lease_until) == (run.due, entry.when)
        self.tokens[run.number] = item.token
        self.consumers[consumer].append(Reservation(item, run))

    def put_away(self, reservation: Reservation) -> None:
        """The reservation is over; a consumer may still come with it."""
        for holding in self.consumers:
            if reservation in holding:
                holding.remove(reservation)
        self.past = [*self.past, reservation][-PAST:]

    # --- how they are driven ---------------------------------------------------------------------

    def settle(
        self, reservation: Reservation, real: Callable[[], Any], model: Callable[[], Any], *, ends: bool = True
    ) -> Any:
        """Call both; they must agree on the outcome. Returns what the product returned."""
        refusal = self.refusal(model)
        try:
            answer = real()
        except mongoq.MongoqError as error:
            self._check_error(error, refusal, reservation.run.id)
            answer = None
        else:
            assert refusal is None, f"succeeded in spite of {refusal!r}"
        if ends and not isinstance(refusal, (Taken, Misfit, NoDeadQueue)):
            self.put_away(reservation)
        return answer

    @staticmethod
    def refusal(model: Callable[[], Any]) -> Refusal | None:
        try:
            model()
        except Refusal as refusal:
            return refusal
        return None

    def _check_error(self, error: Exception, refusal: Refusal | None, id: Any) -> None:
        assert refusal is not None, f"refused: {error!r}"
        assert type(error) is REFUSALS[type(refusal)], f"{error!r} instead of {refusal!r}"
        if isinstance(error, mongoq.DuplicateItem):
            assert error.item_id == refusal.args[0]
        if isinstance(error, mongoq.ReservationLost):
            entry = self.model.entries.get(id)
            until = entry.when if entry is not None and entry.is_held(self.model.now) else None
            assert (error.certain, error.held_until) == (True, until)

    def push_to_both(self, real: Callable[[], Any], model: Callable[[Any], Any]) -> None:
        """Push, and let the model push under the id that the product returned; or both refuse, for one reason."""
        try:
            id = real()
        except mongoq.DuplicateItem as error:
            self.check_duplicate(error, self.refusal(lambda: model(None)))
        else:
            assert model(id) == id

    @staticmethod
    def check_duplicate(error: Any, refusal: Refusal | None) -> None:
        """The key of a live item is in the way, or the id of another push."""
        assert isinstance(refusal, (Taken, Used)), f"{error!r} instead of {refusal!r}"
        if isinstance(refusal, Used):
            assert (error.queue, error.key, error.item_id, error.id) == (refusal.args[0], None, *refusal.args[1:] * 2)
        else:
            assert (error.item_id, error.id) == (refusal.args[0], None)

    def settle_many(
        self,
        reservations: Sequence[Reservation],
        real: Callable[[], Any],
        model: Callable[[Reservation], Any],
        *,
        ends: bool = True,
    ) -> Any:
        """Settle many in both; return what the product returned, or ``None`` when it failed for some."""
        expected = {
            reservation.run.id: self.refusal(lambda reservation=reservation: model(reservation))
            for reservation in reservations
        }
        done: Sequence[Any] = list(expected)
        failed: Mapping[Any, Exception] = {}
        answer = None
        try:
            answer = real()
        except mongoq.BatchIncomplete as error:
            done, failed = error.done, error.failed
        assert sorted([*done, *failed]) == sorted(expected), "an item is reported twice, or not at all"
        has_lost = any(isinstance(refusal, Lost) for refusal in expected.values())
        for reservation in reservations:
            until = reservation.item.lease_until
            exact = not has_lost or until is None or until <= self.model.now
            self._check_one(failed.get(reservation.run.id), expected[reservation.run.id], exact=exact)
            if ends and not isinstance(expected[reservation.run.id], Misfit):
                self.put_away(reservation)
        return answer

    @staticmethod
    def _check_one(error: Exception | None, refusal: Refusal | None, *, exact: bool) -> None:
        """A removed item may look like a lost one; only then is an answer uncertain."""
        if isinstance(error, mongoq.ReservationLost) and not error.certain and not exact:
            assert not isinstance(refusal, Misfit)
        elif refusal is None:
            assert error is None, f"failed: {error!r}"
        else:
            assert type(error) is REFUSALS[type(refusal)], f"{error!r} instead of {refusal!r}"
            assert not isinstance(error, mongoq.ReservationLost) or error.certain

    # --- how they are compared -----------------------------------------------------------------

    @staticmethod
    def check_item(item: mongoq.Item[Any], entry: Entry) -> None:
        """An item that was handed out is the model's."""
        error = None if item.error is None else (item.error.type, item.error.message)
        got = (item.id, item.queue, item.payload, item.priority, item.attempts, item.key, item.headers, error)
        want = (entry.id, entry.queue, entry.payload, entry.priority, entry.attempts, entry.key, entry.headers or {})
        assert got == (*want, entry.error)
        assert item.once == entry.once
        origin = item.origin and Origin(*(getattr(item.origin, name) for name in Origin._fields))
        assert origin == entry.origin

    @invariant()
    def they_agree(self) -> None:
        """Everything that is stored is in the model, as it is there, and nothing else is.

        But for the marks behind the items of a queue, which are there once a claim was slow, as on a busy machine.
        """
        items = {"q": {"$exists": True}, "when": {"$not": {"$type": "maxKey"}}}
        by_id = {document["_id"]: document for document in self.raw.find(items)}
        assert by_id.keys() == self.model.entries.keys()
        for id, document in by_id.items():
            assert _seen(document) == self._expected(self.model.entries[id])
        keys = [
            (document["q"], document["key"]) for document in by_id.values() if "key" in document and "when" in document
        ]
        assert len(keys) == len(set(keys)), "two live items of a queue have one key"

    @invariant()
    def nothing_is_lost(self) -> None:
        """The ledger: what was pushed is there, or somebody has taken it."""
        assert self.model.pushed == self.model.entries.keys() | self.model.gone.keys()

    def _expected(self, entry: Entry) -> dict[str, Any]:
        common = {
            "q": entry.queue,
            "once": entry.once,
            "into": entry.into,
            "processed": entry.processed,
            "expires": entry.expires,
        }
        if entry.is_stub:
            return {**common, "stub": True}
        return {
            **common,
            "payload": entry.payload,
            "when": entry.when,
            "priority": entry.priority,
            "attempts": entry.attempts,
            "reserved": entry.holder is not None,
            "token": None if entry.holder is None else self.tokens[entry.holder],
            "key": entry.key,
            "headers": entry.headers,
            "error": entry.error,
            "origin": entry.origin,
        }


FIELDS = ("payload", "when", "priority", "attempts", "reserved", "token", "key", "headers")


def _seen(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored envelope in the terms of the comparison."""
    common = {name: document.get(name) for name in ("q", "once", "into", "processed", "expires")}
    if "payload" not in document:
        return {**common, "stub": True}
    error = document.get("error")
    return {
        **common,
        **{name: document.get(name) for name in FIELDS},
        "error": error and (error["type"], error["message"]),
        "origin": _origin_of(document),
    }


def _origin_of(document: Mapping[str, Any]) -> Origin | None:
    origin = document.get("origin")
    return origin and Origin(*(origin[name] for name in Origin._fields))


def text_of(error: BaseException | str | None) -> tuple[str, str] | None:
    """How an error is remembered."""
    if error is None:
        return None
    return ("", error) if isinstance(error, str) else (type(error).__name__, str(error))


def seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)
