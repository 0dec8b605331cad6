"""What the two sides of a join share: what it goes by, and how what was decided is written, all in one transaction."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from mongoq.model.item import Document, Item, id_key
from mongoq.model.join_state import JoinState, rendezvous_id
from mongoq.protocol.base.find import find_few
from mongoq.protocol.flow.chunking import chunks
from mongoq.protocol.flow.commands import Command, Flow
from mongoq.protocol.join.pair import Member, Pair, leaving
from mongoq.protocol.settle.bulk import Statement, count_found
from mongoq.protocol.settle.exchange import FenceMiss
from mongoq.protocol.settle.outputs import record_output
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = [
    "ARRIVALS",
    "FOREVER",
    "JoinSpec",
    "JoinTransaction",
    "Late",
    "Missing",
    "noted_of",
    "remembered",
    "rendezvous",
    "sent",
]

logger = logging.getLogger("mongoq.joining")

Late = Literal["error", "wait", "drop"]
Missing = Literal["error", "pass"]
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""Until when items wait whose join has no timeout."""
REMEMBERED = timedelta(days=7)
"""How long it is known that an item was given up, and its partners come too late."""
ARRIVALS = 500
"""Items that are claimed at once, and of one transaction that settles those whose time is up."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinSpec:
    """What a join goes by.

    Attributes:
        name: what its rendezvous are known by: the pipeline and the stage.
        sides: the queues that items come by, each with the settings of the stage.
        parked: the queue of those that wait.
        pairs: the queue of those that were joined.
        timeout: how long one waits; ``None`` for ever.
        missing: what becomes of one whose partners have not come by then.
        late: what becomes of a partner that comes later.
        coming: says of a queue whether this process is about to have more of its items.
        fates: what became of items that were neither joined nor parked, by ``id_key``, until somebody asks for it.
        turns: how often items of each queue have come in this process.
        queues: the names of the queues that items come by.
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
    _others: dict[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {side.name: side for side in self.sides})
        object.__setattr__(self, "queues", tuple(self._by_name))
        others = {queue: tuple(other for other in self.queues if other != queue) for queue in self.queues}
        object.__setattr__(self, "_others", others)

    def others(self, queue: str) -> tuple[str, ...]:
        """Return the names of the other queues."""
        return self._others[queue]

    def named(self, queue: str) -> str:
        """Name the other queues in a sentence."""
        return ", ".join(map(repr, self.others(queue)))

    def missed(self, queue: str) -> str:
        """Return why who came by this queue is given up."""
        wanted = "no item" if len(self.queues) == 2 else "not one of each"
        return f"{wanted} of {self.named(queue)} came within {self.timeout}"

    def side(self, queue: str) -> QueueContext[Any]:
        """Return one of the queues by its name."""
        return self._by_name[queue]


@dataclass(slots=True)
class JoinTransaction:
    """What one transaction does.

    Attributes:
        now: when it began.
        own: statements of single items, each of which is to find one.
        settled: how many those are.
        pairs: what is written.
        values: what is known from now on of values that nothing was known of.
        members: who leaves for good.
        parked: of those who wait from now on the queues that they came by, the priorities, and until when.
        put_off: who stays as it is, and is to come again in a moment.
        fates: what becomes of those who neither leave for a pair nor wait, by ``id_key``.
        reasons: why some go to the error queue.
    """

    now: datetime
    own: list[Statement] = field(default_factory=list)
    settled: int = 0
    pairs: list[Pair] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    parked: list[tuple[str, int, datetime]] = field(default_factory=list)
    put_off: list[Item[Any]] = field(default_factory=list)
    fates: dict[Any, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def bury(self, statement: Statement, reason: str) -> None:
        """Let an item go to the error queue."""
        self.own.append(statement)
        self.settled += 1
        self.reasons.append(reason)

    def end(self, item: Item[Any], fate: str) -> None:
        """Take note of what became of one that is neither joined nor parked."""
        self.fates[id_key(item.id)] = fate


def noted_of(spec: JoinSpec, done: JoinTransaction) -> None:
    """Count what was done, tell what has failed, and wake who waits for it in this process."""
    spec.fates.update(done.fates)
    if done.reasons:
        logger.warning(
            "%d items of the join %r have failed; the last: %s", len(done.reasons), spec.name, done.reasons[-1]
        )
    for one in done.pairs:
        record_output(spec.parked, one.document)
    for queue, number in Counter(member.context.name for member in done.members).items():
        spec.parked.broker.counters.add(queue, "commit", number)
    if not done.parked:
        return
    for queue, number in Counter(queue for queue, _, _ in done.parked).items():
        spec.parked.broker.counters.add(queue, "move", number)
    for priority, until in {(priority, until) for _, priority, until in done.parked}:
        spec.parked.placed(priority, until)
    if spec.timeout is not None:
        spec.parked.broker.tell(spec.parked.name, min(until for _, _, until in done.parked))


def rendezvous(spec: JoinSpec, keys: Iterable[str]) -> Flow[dict[str, Document]]:
    """Read what is stored of some values, by their keys."""
    ids = {rendezvous_id(spec.name, key): key for key in keys}
    broker = spec.parked.broker
    found = yield from find_few(broker, {"_id": {"$in": list(ids)}}, [("_id", 1)], len(ids))
    return {ids[document["_id"]]: document for document in found}


def remembered(
    spec: JoinSpec, known: Iterable[JoinState], values: Mapping[str, Any], doing: JoinTransaction
) -> Flow[None]:
    """Write what is known of the values; what there is nothing to remember of goes, and what is new is made.

    Who writes the same document at the same time meets a conflict, and has another go.
    """
    requests: list[Statement] = []
    done: list[str] = []
    for meeting in known:
        id = rendezvous_id(spec.name, meeting.key)
        if meeting.done:
            done += [id] if meeting.stored else []
            continue
        fields = {**meeting.fields(), "value": values.get(meeting.key), "at": doing.now}
        leaves = {"expires": doing.now + REMEMBERED} if meeting.empty else {}
        if not meeting.stored:
            doing.values.append({"_id": id, **fields, **leaves})
            continue
        update = {"$set": {**fields, **leaves}, **({} if leaves else {"$unset": {"expires": ""}})}
        requests.append(("UpdateOne", {"filter": {"_id": id}, "update": update}))
    if done:
        requests.append(("DeleteMany", {"filter": {"_id": {"$in": done}}}))
    if requests:
        yield from count_found(spec.parked.broker, requests)


def sent(broker: BrokerContext, doing: JoinTransaction) -> Flow[None]:
    """Write what is done; raises ``FenceMiss`` when an item is somebody else's by now."""
    expected = doing.settled + len(doing.members)
    requests = [*doing.own, *leaving(doing.members, doing.now)]
    if requests and (yield from count_found(broker, requests)) < expected:
        raise FenceMiss
    made = [*map(broker.encoding.raw, doing.values), *(one.raw for one in doing.pairs)]
    for chunk in chunks(made, lambda document: len(document.raw)):
        yield from Command[Any]("insert_many", {"documents": chunk, "ordered": True})
