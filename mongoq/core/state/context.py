"""The context of operations: the state of a broker, and of one handle of a queue."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import uniform
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from mongoq.core.state.claim_hints import ClaimHints, Contention
from mongoq.core.state.wait_queue import WaiterRegistry
from mongoq.data.clock import Clock, VirtualClock, milliseconds, time_of
from mongoq.data.encoding.codec import Codec, Encoding, UnreadableDocument
from mongoq.data.indexes import BEGINNING
from mongoq.data.item import ClaimedPayload, Document, Item, StageMark, id_key, items_of, keep_payload, with_stored
from mongoq.data.log_fields import log_fields
from mongoq.data.process import Counters, Event, Identity
from mongoq.data.settings import QueueOptions, QueueSettings, SettingsFrom, resolve_settings
from mongoq.errors import PayloadInvalid

logger = logging.getLogger("mongoq.foreign")

M = TypeVar("M")
MAX_EXPECTED_REMEMBER = timedelta(minutes=1)
WHOLE_READ_PAUSE_SECONDS = 1.0
"""Seconds for which claims of many read ids alone, after items that they had read whole were of no use."""
MARK_IN_USE_SECONDS = 3600.0
"""Seconds after which a process that claims from an empty queue writes that the queue is in use."""
FIRST_SWEEP_SECONDS = 3600.0
"""Seconds within which a process first looks for idle queues, at random: many processes do not live so long."""
RECHECK_SECONDS = 3600.0
"""Seconds after which a process checks again that the options of a queue are stored."""
MAX_UNUSED_STATES = 1_000
"""States of queues without a handle that a process keeps, the latest used ones: a queue for each reply is soon over."""


@dataclass(slots=True)
class Known:
    """How old this process's copy of a control document is.

    Attributes:
        read_at: when its read was sent, on the monotonic clock.
        changed_at: when the change stream last delivered a change of it, on the monotonic clock.
    """

    read_at: float = float("-inf")
    changed_at: float = float("-inf")

    def stale(self, age: float, registry: WaiterRegistry | None = None) -> bool:
        """Return whether the copy is out of date: a change was delivered, or it is older than ``age`` seconds.

        A copy that was read while the change stream was open does not age: the stream delivers each change.
        """
        if self.read_at <= self.changed_at:
            return True
        now = time.monotonic()
        is_told_of_changes = registry is not None and now < registry.alive_until and self.read_at > registry.since
        return not is_told_of_changes and now - self.read_at >= age


@dataclass(slots=True)
class Topics(Known):
    """This process's copy of the bindings of a collection.

    Attributes:
        bound: the queues bound to each topic, in the order they were bound.
        written_at: when this process last changed them; a read that was sent before that is out of date.
    """

    bound: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    written_at: float = float("-inf")

    def store(self, bound: Mapping[str, tuple[str, ...]], asked_at: float, *, is_written: bool = False) -> None:
        """Store bindings that were read, or written (``is_written``); a write says nothing of later changes."""
        if is_written:
            self.written_at = time.monotonic()
        elif asked_at < max(self.written_at, self.read_at):
            return
        self.bound, self.read_at = bound, asked_at


@dataclass(slots=True, weakref_slot=True)
class QueueState(Known):
    """This process's state of a queue: its copy of the control document, and what keeps claims fast.

    All handles of a broker share it. It goes with the last of them, a while later.

    Attributes:
        paused: the queue is paused.
        stored: the stored options, in the form used inside.
        given: the options that code of this process gives, by any handle of the queue; of two values the later one.
        saved_at: when ``given`` was last found stored, on the monotonic clock; ``inf`` while it is empty.
        claim_hints: the bounds of claims.
        contention: the distance to other processes that claim batches.
        reads_whole_at: from when on, on the monotonic clock, claims of many may read items whole.
        fenced_off: the priorities that have an end mark.
        calm_until: until when, on the monotonic clock, operations skip the checks that come before a command.
        calm_at: when these checks were last done, on the server's clock.
        lost_at: when, on the monotonic clock, stored options were last found to be gone: those of an unused queue
            expire, and a dropped queue loses them.
        used_until: until when, on the monotonic clock, this process need not write that the queue is in use.
        told_used: this process has written that the queue is in use.
        fenced_at: since when ``fenced_off`` holds: the end marks of an unused queue expire.
        asserted: the options that this process has stored because its code gives them, each once.
        held_up: until when, on the monotonic clock, claims of a worker skip items whose lease is over: a transaction
            blocks the first of them.
        remembers_until: until when, on the monotonic clock, pops expect remembered ids; set by a push that gives one,
            and by a pop that met one.
        ordered: items of the queue have had sequences: then what removes an item lets the next one of its sequence go.
    """

    paused: bool = False
    stored: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    saved_at: float = float("inf")
    claim_hints: ClaimHints = field(default_factory=ClaimHints)
    contention: Contention = field(default_factory=Contention)
    reads_whole_at: float = float("-inf")
    fenced_off: set[int] = field(default_factory=set)
    calm_until: float = float("-inf")
    calm_at: datetime = BEGINNING
    held_up: float = 0.0
    lost_at: float = float("-inf")
    used_until: float = field(default_factory=lambda: time.monotonic() + MARK_IN_USE_SECONDS)
    told_used: bool = False
    fenced_at: float = field(default_factory=time.monotonic)
    asserted: set[tuple[str, Any]] = field(default_factory=set)
    remembers_until: float = float("-inf")
    ordered: bool = False

    def expect_remembered(self, remember: timedelta = MAX_EXPECTED_REMEMBER) -> None:
        """Let pops use updates for this long, a minute at most; the server logs each delete that it refuses."""
        until = time.monotonic() + min(remember, MAX_EXPECTED_REMEMBER).total_seconds()
        self.remembers_until = max(self.remembers_until, until)

    def read_ids_only(self) -> None:
        """Let claims of many read the ids alone for a while: items that they read whole were of no use."""
        self.reads_whole_at = time.monotonic() + WHOLE_READ_PAUSE_SECONDS

    def store(self, *, paused: bool, settings: Mapping[str, Any] | None = None, asked_at: float | None = None) -> None:
        """Store what was read or written; equal options keep their identity."""
        self.paused, self.read_at = paused, time.monotonic() if asked_at is None else asked_at
        if settings is not None and settings != self.stored:
            if self.stored.keys() - settings.keys():
                self.lost_at = time.monotonic()
            self.stored = settings


@dataclass(slots=True)
class BrokerContext:
    """The state that all queues of a broker share.

    Attributes:
        namespace: ``database.collection``.
        clock: the server's clock.
        encoding: encodes values as BSON.
        serverless: the collection is mongomock's: no ``hello``, no partial indexes.
        measured: the server's clock was measured once.
        measuring: the process in which a caller measures it again now, or 0; the others use the known offset. A child
            that is forked meanwhile measures for itself.
        checked: the schema and the collection were checked.
        indexed: the indexes and the schema document were written.
        states: the state of each queue that has a handle, or was used lately.
        latest: the states that were asked for last, by queue, the latest one last.
        topics: the copy of the bindings.
        calm_until: until when, on the monotonic clock, a push skips the checks that come before a command.
        group_commit: concurrent callers share commands.
        counters: events that are counted and not written yet.
        stats: the last answer of ``stats``, and when it was read.
        untyped: the codec of queues without a model.
        registry: the wait queues of this process.
        unsettled: the reservations of ``reserved()`` blocks that the blocks settle at their end.
        unsaved: the states, by queue, whose ``given`` options were not stored yet; the next write of any handle stores
            them, even when no handle of the queue is left.
        received: the queues into which this process has pushed or moved items since it last wrote counters.
        look_at: from when on, on the monotonic clock, a write of counters also checks which queues are empty.
        sweep_at: from when on, on the monotonic clock, this process looks for idle queues (``core.admin``).
        settings_from: the settings that win when those in code differ from the stored ones.
        schedules: the schedules that code of this process has defined, by name.
        schedule_troubles: the last line that was logged of each kind about a schedule, by its name and the kind.
    """

    namespace: str
    clock: Clock
    encoding: Encoding
    serverless: bool = False
    identity: Identity = field(default_factory=Identity)
    checked: bool = False
    measured: bool = False
    measuring: int = 0
    indexed: bool = False
    states: WeakValueDictionary[str, QueueState] = field(default_factory=WeakValueDictionary)
    latest: OrderedDict[str, QueueState] = field(default_factory=OrderedDict)
    topics: Topics = field(default_factory=Topics)
    calm_until: float = float("-inf")
    unsettled: set[Any] = field(default_factory=set)
    group_commit: bool = False
    counters: Counters = field(default_factory=Counters)
    stats: tuple[float, Mapping[str, Any]] | None = None
    settings_from: SettingsFrom = "stored"
    unsaved: dict[str, QueueState] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    look_at: float = float("-inf")
    sweep_at: float = field(default_factory=lambda: time.monotonic() + uniform(0.1, 1.0) * FIRST_SWEEP_SECONDS)
    schedules: dict[str, Any] = field(default_factory=dict)
    schedule_troubles: dict[tuple[str, str], str] = field(default_factory=dict)
    untyped: Codec[Any] = field(init=False)
    registry: WaiterRegistry = field(init=False)

    def __post_init__(self) -> None:
        self.untyped = Codec(self.encoding)
        self.registry = WaiterRegistry(lambda: self.serverless or isinstance(self.clock, VirtualClock))

    @property
    def collection(self) -> str:
        """The collection's name."""
        return self.namespace.partition(".")[2]

    def state(self, queue: str) -> QueueState:
        """Return the state of a queue, made at first use."""
        with self.registry.lock:  # two threads that make a handle have to share one state
            state = self.latest[queue] = self.states.get(queue) or QueueState()
            self.states[queue] = state
            self.latest.move_to_end(queue)
            if len(self.latest) > MAX_UNUSED_STATES:
                self.latest.popitem(last=False)
            return state

    def record_put(
        self, queue: str, when: datetime, *priorities: Any, number: int = 1, id: Any = None, is_new: bool = True
    ) -> None:
        """Count new items, lower the bounds of claims, and wake waiters.

        Called after each write that puts items into a queue, or makes items due there again.

        Args:
            queue: the queue.
            when: the time from which on the items are eligible.
            priorities: their priorities, in any order and number; none when they are not known.
            number: the number of items.
            id: the id of a single item, by which waiters recognise its event of the change stream.
            is_new: the items count as put. False for items that stay in the queue, or that are counted already.
        """
        if number < 1:
            return
        if is_new:
            self.counters.add(queue, "put", number)
        self.received.add(queue)
        state = self.states.get(queue)
        if state is not None and state.claim_hints.fast:
            # Another program may have written any value, even one that has no hash.
            for priority in {value if isinstance(value, int) else None for value in priorities} or {None}:
                state.claim_hints.note(priority, when)
        wait_queue = self.registry.wait_queues.get(queue)
        if wait_queue is not None:
            due = (when - self.clock.now()).total_seconds()
            wait_queue.tell(due, number, None if id is None else event_key(id, when))

    def wake(self, queue: str) -> None:
        """Let a waiter of this process ask once more, although nothing was put: the settings of its queue changed."""
        wait_queue = self.registry.wait_queues.get(queue)
        if wait_queue is not None:
            wait_queue.tell()


def event_key(id: Any, when: datetime) -> Any:
    """Return the key by which a stream event of this item and date is recognized."""
    return id_key(id), milliseconds(when)


class Handed(NamedTuple):
    """An item that a settlement has reserved for a taker.

    Attributes:
        document: its envelope as it was, which may be unreadable.
        marks: the fields that reserve it, with its token.
        now: the server's time of the reservation.
    """

    document: Mapping[str, Any]
    marks: Mapping[str, Any]
    now: datetime


class Taker(Protocol):
    """Takes items of one queue."""

    def reserve(self, now: datetime) -> Mapping[str, Any] | None:
        """Return the fields that reserve an item, with a token of its own; ``None`` without room for one.

        Called in each attempt of a transaction.
        """
        ...

    def accept(self, handed: Handed) -> None:
        """Take a reserved item; called after the commit."""
        ...


@dataclass(slots=True)
class QueueContext(Generic[M]):
    """One handle of a queue: its options and codec, and the broker it belongs to.

    Attributes:
        broker: the state of the broker.
        options: the options that the caller gave.
        name: the queue's name.
        codec: encodes and decodes its payloads.
        state: the state of the queue.
        overriding: settings of this handle alone, whatever is stored.
        assumed: settings of this handle alone where code gives none and none are stored.
        stage: the stage of a pipeline that uses this handle, if any: it is written on the trails of settled items.
        letters_of: the queue or stage whose dead letters this handle of an error queue selects; ``None`` for all.
        taker: takes the next items of sequences when this handle settles the ones before them; ``None``: claims do.
        settings_from: the settings that win for this handle; by default as for its broker.
        saved: the control document holds the options of this handle, or other values of them.
        unfit: items that this handle has buried while claiming, because they could not be handed out.
    """

    broker: BrokerContext
    options: QueueOptions
    codec: Codec[M]
    overriding: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    stage: StageMark | None = None
    settings_from: SettingsFrom | None = None
    taker: Taker | None = None
    letters_of: str | None = None
    name: str = field(init=False)
    state: QueueState = field(init=False)
    saved: bool = field(init=False)
    unfit: int = field(init=False, default=0)
    _resolved_from: tuple[Any, Any] = field(init=False, default=(None, None))  # the mappings, which are replaced whole
    _settings: QueueSettings = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.options.name
        self.state = self.broker.state(self.name)
        given, state = self.options.given, self.state
        self.saved = not given
        if not given.items() <= state.given.items():
            state.given, state.saved_at = {**state.given, **given}, -math.inf
            self.broker.unsaved[self.name] = state
        self.settings_from = self.settings_from or self.broker.settings_from

    @property
    def settings(self) -> QueueSettings:
        """The settings in force, as far as this process knows."""
        given, stored = self.state.given, self.state.stored
        if self._resolved_from[0] is not given or self._resolved_from[1] is not stored:
            self._settings = resolve_settings(self.name, {**self.assumed, **given, **stored, **self.overriding})
            self._resolved_from = given, stored
        return self._settings

    def is_saved(self, now: float) -> bool:
        """Return whether the control documents hold the options of this handle, and of all others of the broker."""
        state = self.state
        return self.saved and not self.broker.unsaved and state.lost_at < state.saved_at > now - RECHECK_SECONDS

    def count(self, event: Event, number: int = 1) -> None:
        """Count an event of the queue."""
        self.broker.counters.append((self.name, event, number))

    def record_put(self, priority: int, at: int, *, id: Any = None, number: int = 1) -> None:
        """Record pushed items, due at ``at`` in milliseconds since 1970, as ``BrokerContext.record_put`` does.

        Most pushes meet no waiter or bound: then no date is made, which takes longer than all the rest.
        """
        broker = self.broker
        if self.state.claim_hints.fast or self.name in broker.registry.wait_queues:
            broker.record_put(self.name, time_of(at), priority, number=number, id=id)
        else:
            broker.counters.append((self.name, "put", number))

    def raw_item(self, document: Document, now: datetime, *, due: datetime | None = None) -> Item[Any]:
        """Return the item of an envelope, with its payload as it is stored."""
        payload = document.get("payload")
        if self.stage is None or not self.stage.keeps or "payload" not in document:
            return Item(document, payload, now, self.broker.namespace, due)
        return Item(document, payload, now, self.broker.namespace, due, kept=self.as_claimed(payload))

    def raw_items(self, documents: Sequence[Document], now: datetime, dues: Sequence[datetime]) -> list[Item[Any]]:
        """Return the items of many envelopes, with their payloads as they are stored."""
        if self.stage is None or not self.stage.keeps:
            return items_of(documents, now, self.broker.namespace, dues)
        return [self.raw_item(document, now, due=due) for document, due in zip(documents, dues, strict=True)]

    def as_claimed(self, payload: Any) -> ClaimedPayload:
        """Return a copy of a payload for the trail."""
        return keep_payload(payload, self.broker.encoding)

    def preserve_payload(self, item: Item[M]) -> Item[M]:
        """Return an item with a copy of its stored payload, which a handler cannot change."""
        try:
            raw = self.broker.encoding.raw({"payload": item.stored("payload")})
        except Exception:  # values decoded by the caller's own codec options may not be encodable
            return item
        return with_stored(item, "payload", raw["payload"])

    def item(self, document: Document, now: datetime) -> Item[M]:
        """Return the item of an envelope; raises ``PayloadInvalid`` with the raw item for a misfit."""
        item = self.raw_item(document, now)
        if isinstance(document, UnreadableDocument):
            hint = f"{document.problem} (item {item.id}); remove(id) deletes it, and its bytes are in the error's raw"
            raise PayloadInvalid("payload", hint, item=item, raw=document.raw)
        if self.codec.untyped:
            return item
        try:
            return self.decode_payload(item)
        except PayloadInvalid as invalid:
            hint = f"{invalid.problem} (item {item.id}); a queue handle without a model shows it as it is"
            raise PayloadInvalid(invalid.path, hint, item=item) from invalid

    def items(self, documents: Iterable[Document], now: datetime) -> list[Item[M]]:
        """Return the items of envelopes, as ``item`` does; undecodable documents are left out and logged."""
        items = []
        for document in documents:
            if not isinstance(document, UnreadableDocument):
                items.append(self.item(document, now))
                continue
            id, hint = document.get("_id"), "get(id) raises with its bytes, remove(id) deletes it"
            words = id, self.name, document.problem, hint
            logger.warning("left out document %s of queue %r: %s; %s", *words, extra=log_fields(queue=self.name, id=id))
        return items

    def decode_payload(self, item: Item[Any]) -> Item[M]:
        """Return the item with its payload validated by the model; raises ``PayloadInvalid``."""
        return item if self.codec.untyped else item.with_payload(self.codec.load(item.payload))


def context_of(to: Any) -> Any:
    """Return the context of a queue's handle, or a queue's name unchanged."""
    return getattr(to, "_context", to)
