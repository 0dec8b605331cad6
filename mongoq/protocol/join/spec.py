"""The settings of a join, and the writes of one transaction, of arrivals or of expired items."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from mongoq.model.item import Document, Item, id_key
from mongoq.model.join_state import JoinState, rendezvous_id
from mongoq.model.log_fields import log_fields
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.statements import Statement, send_statements
from mongoq.protocol.flow import Command, Flow, chunks
from mongoq.protocol.join.pair import Member, Pair, make_leave_statements
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.exchange import FenceMiss
from mongoq.protocol.state.context import BrokerContext, QueueContext

logger = logging.getLogger("mongoq.joining")

Late = Literal["error", "wait", "drop"]
Missing = Literal["error", "pass"]
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""End of the wait in a join without a timeout."""
EXPIRED_ITEM_REMEMBER = timedelta(days=7)
"""Time for which a given-up item is remembered, so that its partners are known to be too late."""
MAX_ARRIVALS = 500
"""Items in one claim, and in one transaction that settles expired items."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinSpec:
    """The settings of a join, and its state in this process.

    Attributes:
        name: pipeline and stage; the rendezvous are stored under this name.
        sides: queues that items arrive by, each with the settings of the stage.
        parked: queue of waiting items.
        pairs: name of the queue of joined items.
        timeout: time that an item waits; ``None`` for ever.
        missing: what happens to an item without partners at the end of that time.
        late: what happens to a partner that arrives later.
        coming: returns whether this process is about to receive more items of a queue.
        fates: what happened to items that were neither joined nor parked, by ``id_key``; kept until it is read.
        turns: times that items of each queue have arrived in this process; it only grows.
        queues: names of the queues that items arrive by.
    """

    name: str
    sides: tuple[QueueContext[Any], ...]
    parked: QueueContext[Any]
    pairs: str
    timeout: timedelta | None
    missing: Missing
    late: Late
    coming: Callable[[str], bool] = lambda _: False

    fates: dict[Any, str] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)
    queues: tuple[str, ...] = field(init=False)
    _by_name: dict[str, QueueContext[Any]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {side.name: side for side in self.sides})
        object.__setattr__(self, "queues", tuple(self._by_name))

    def others(self, queue: str) -> tuple[str, ...]:
        """Return the names of the other queues."""
        return tuple(other for other in self.queues if other != queue)

    def others_as_text(self, queue: str) -> str:
        """Return the names of the other queues, as text for a sentence."""
        return ", ".join(map(repr, self.others(queue)))

    def missing_reason(self, queue: str) -> str:
        """Return the reason why an item of this queue is given up."""
        wanted = "no item" if len(self.queues) == 2 else "not one of each"
        return f"{wanted} of {self.others_as_text(queue)} came within {self.timeout}"

    def side(self, queue: str) -> QueueContext[Any]:
        """Return one of the queues by its name."""
        return self._by_name[queue]


@dataclass(slots=True)
class JoinTransaction:
    """The writes and results of one transaction.

    Attributes:
        now: time of its start.
        own: statements of single items; each must find one item.
        pairs: joined items to insert.
        values: new rendezvous documents to insert.
        members: items that leave for good.
        parked: newly parked items: queue of arrival, priority, end of the wait.
        put_off: items that stay as they are and arrive again in a moment.
        fates: what happens to items that neither leave for a pair nor wait, by ``id_key``.
        reasons: reasons of the items that go to the error queue.
        promoted: items that are next in the sequences of those that have left.
    """

    now: datetime
    own: list[Statement] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    parked: list[tuple[str, int, datetime]] = field(default_factory=list)
    put_off: list[Item[Any]] = field(default_factory=list)
    fates: dict[Any, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    promoted: list[Promoted] = field(default_factory=list)

    def bury(self, statement: Statement, reason: str) -> None:
        """Add the statement that sends an item to the error queue."""
        self.own.append(statement)
        self.reasons.append(reason)

    def end(self, item: Item[Any], fate: str) -> None:
        """Record what happened to an item that is neither joined nor parked."""
        self.fates[id_key(item.id)] = fate


def record_results(spec: JoinSpec, transaction: JoinTransaction) -> None:
    """Count the results, log failures, and wake callers in this process that wait for the items."""
    spec.fates.update(transaction.fates)
    if transaction.reasons:
        logger.warning(
            "%d items of the join %r have failed; the last: %s",
            *(len(transaction.reasons), spec.name, transaction.reasons[-1]),
            extra=log_fields(queue=spec.parked.name),
        )
    broker = spec.parked.broker
    record_promoted(broker, transaction.promoted)
    for document in (pair.document for pair in transaction.pairs):
        broker.record_put(document["q"], document["when"], document["priority"], id=document["_id"])
    for queue, number in Counter(member.context.name for member in transaction.members).items():
        broker.counters.add(queue, "commit", number)
    for queue, number in Counter(queue for queue, _, _ in transaction.parked).items():
        broker.counters.add(queue, "move", number)
    for (priority, until), number in Counter((priority, until) for _, priority, until in transaction.parked).items():
        broker.record_put(spec.parked.name, until, priority, number=number)


def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> Flow[dict[str, Document]]:
    """Read the stored rendezvous of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    broker = spec.parked.broker
    documents = yield from find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in documents}


def write_states(
    spec: JoinSpec, states: Iterable[JoinState], values: Mapping[str, Any], doing: JoinTransaction
) -> Flow[None]:
    """Write the state of each rendezvous; an empty one with nothing to remember is deleted, a new one is inserted.

    A process that writes the same document at the same time meets a write conflict, and tries again.
    """
    requests: list[Statement] = []
    ended_ids: list[str] = []
    for meeting in states:
        id = rendezvous_id(spec.name, meeting.key)
        if meeting.done:
            ended_ids += [id] if meeting.stored else []
            continue
        fields = {**meeting.fields(), "value": values.get(meeting.key), "at": doing.now}
        leaves = {"expires": doing.now + EXPIRED_ITEM_REMEMBER} if meeting.empty else {}
        if not meeting.stored:
            doing.values.append({"_id": id, **fields, **leaves})
            continue
        update = {"$set": {**fields, **leaves}, **({} if leaves else {"$unset": {"expires": ""}})}
        requests.append(("UpdateOne", {"filter": {"_id": id}, "update": update}))
    if ended_ids:
        requests.append(("DeleteMany", {"filter": {"_id": {"$in": ended_ids}}}))
    if requests:
        yield from send_statements(spec.parked.broker, requests)


def send_results(broker: BrokerContext, doing: JoinTransaction) -> Flow[None]:
    """Write all results; raises ``FenceMiss`` when another process has taken an item."""
    expected = len(doing.own) + len(doing.members)
    requests = [*doing.own, *make_leave_statements(doing.members, doing.now)]
    # One count for all statements: a transaction that finds fewer items is aborted as a whole.
    if requests and (yield from send_statements(broker, requests)) < expected:
        raise FenceMiss
    documents = [*map(broker.encoding.raw, doing.values), *(pair.raw for pair in doing.pairs)]
    for chunk in chunks(documents, lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})
