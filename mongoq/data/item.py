"""Items, as the user sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from bson import Decimal128, ObjectId

from mongoq.data.arguments import text
from mongoq.data.encoding.codec import SIZE_LIMIT, Encoding
from mongoq.data.sequence import Target, held_target
from mongoq.errors import ArgumentInvalid

M = TypeVar("M")
N = TypeVar("N")
Document = Mapping[str, Any]
State = Literal["ready", "scheduled", "reserved", "expired", "blocked", "processed"]
"""State of an item, which follows from its fields and the time of the read."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of an item.

    Attributes:
        type: class of the error, with its module unless it is Python's own, such as
            ``pymongo.errors.DuplicateKeyError``; ``""`` when the caller gave only a text.
        message: text of the error, shortened.
        at: time of the report, on the server's clock.
        traceback: traceback with the outermost frame first, shortened to 4 KiB; ``""`` where the caller gave no
            exception, or one that was never raised.
    """

    type: str
    message: str
    at: datetime
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a dead item, or of a copy that a replay or a push to a topic made.

    Attributes:
        queue: queue in which it died, or whose history it was copied from; topic that it was pushed to.
        id: its id there, or the id that the push returned; a burial keeps the id, a copy has a new one.
        reason: reason of the burial; ``"replayed"`` for the copy of a replay, with the label if it had one;
            ``"published"`` for that of a push to a topic.
        attempts: number of its reservations there. For an item that a claim buried because no runs were left, it is the
            number of runs that the queue then allowed.
        key: key that it had there; it does not go with the item.
        at: time of the burial, the copy or the push, on the server's clock.
        stage: stage of a pipeline that buried it; ``None`` for other callers.
        delivery: hash of that stage and this item (see ``Job.delivery_hash``), the same for every attempt.
        place: place in its sequence, which the letter holds until it is replayed or gone; ``None`` for other items.
    """

    queue: str
    id: ObjectId
    reason: str
    attempts: int
    key: str | None
    at: datetime
    stage: str | None = None
    delivery: str | None = None
    place: int | None = None


# --- trail ----------------------------------------------------------------------------------------

STAGE_BYTES = 120
"""Bytes of a stage's name, at most."""
MAX_HOPS = 50
"""Entries of a trail, at most; the oldest ones are removed first."""
MAX_LONG_HOPS = 20
"""Entries of a trail with long names, at most."""
LONG_ENTRY_BYTES = 240
"""Bytes from which an entry is long; its trail has at most ``MAX_LONG_HOPS``, so that it fits beside any payload."""
MAX_KEPT_PAYLOAD_BYTES = 64 * 1024
"""Bytes of a payload that is kept in an entry, as BSON, at most."""
LARGE_PAYLOAD_BYTES = 12 * 1024 * 1024
"""Bytes of a payload above which the item has no room for the payloads of its trail."""
HOP_COUNT_LIMIT = 2**31
"""Limit of a number of hops that the server can add to."""


@dataclass(frozen=True, slots=True)
class StageMark:
    """The mark of a stage on the handles that it works with: settlements through them record the stage.

    Attributes:
        name: name of the stage, at most 120 bytes.
        trail: True when each settlement is recorded on the item.
        payloads: True when the record includes the payload as it was before.
    """

    name: str
    trail: bool = False
    payloads: bool = False

    def __post_init__(self) -> None:
        text(self.name, "name", STAGE_BYTES)

    @property
    def keeps(self) -> bool:
        """True when payloads are kept in the trail."""
        return self.trail and self.payloads


@dataclass(frozen=True, slots=True)
class Hop:
    """One entry of an item's trail: a stage of a pipeline has settled it.

    Attributes:
        queue: queue that held it.
        stage: name of the stage.
        by: worker (``host:pid:random``).
        taken: time of the claim, on the server's clock, as ``settled`` is.
        settled: time at which the settlement was sent.
        attempts: reservations in that queue until then.
        ended: ``"moved"``, ``"done"`` or ``"dead"``.
        to: queue that it went to; ``None`` when it was done.
        payload: payload as it was stored before, if it was ``kept``; else ``None``.
        kept: True when the pipeline keeps payloads in the trail, and there was room for this one.
        large: True when the pipeline keeps payloads, but this one took more than 64 KiB or was removed later to make
            room.
        joined: True when the entry is of an item that has been joined with others since.
    """

    queue: str
    stage: str
    by: str | None
    taken: datetime
    settled: datetime
    attempts: int
    ended: str
    to: str | None
    payload: Any = None
    kept: bool = False
    large: bool = False
    joined: bool = False


_TYPES = {"queue": str, "stage": str, "taken": datetime, "settled": datetime, "attempts": int, "ended": str}
"""Required fields of an entry, with their types."""


def trail_of(trail: Any) -> tuple[Hop, ...]:
    """Return the hops in the field ``trail`` of an envelope, oldest first; ignore entries of other programs."""
    if not isinstance(trail, list):
        return ()
    return tuple(
        Hop(
            **{name: entry[name] for name in _TYPES},
            by=entry.get("by"),
            to=entry.get("to"),
            payload=entry.get("payload"),
            kept="payload" in entry,
            large=entry.get("large") is True,
            joined=entry.get("joined") is True,
        )
        for entry in trail
        if isinstance(entry, Mapping) and all(isinstance(entry.get(name), kind) for name, kind in _TYPES.items())
    )


def payload_at(trail: Any, queue: str) -> Any:
    """Return the payload that an item had when it last left a queue; raises ``ArgumentInvalid`` where none was kept."""
    # The latest hop: an item may have gone round a loop.
    hop = next((hop for hop in reversed(trail_of(trail)) if hop.queue == queue), None)
    if hop is None:
        raise ArgumentInvalid("hop", f"its trail does not lead through queue {queue!r}")
    if hop.joined:
        raise ArgumentInvalid("hop", f"it was joined with others behind {queue!r}; those would be lost")
    if not hop.kept:
        raise ArgumentInvalid("hop", f"its payload there was {'too large to be' if hop.large else 'not'} kept")
    return hop.payload


def is_countable(hops: Any) -> bool:
    """Return whether the server can add to a number of hops; other programs may have written anything."""
    return isinstance(hops, int) and not isinstance(hops, bool) and 0 <= hops < HOP_COUNT_LIMIT


def hops_counted(number: Any) -> int:
    """Return the field ``hops`` of an envelope; 0 if it is not a number that the server can add to."""
    return int(number) if is_countable(number) else 0


def most_hops(entry: bytes) -> int:
    """Return the number of entries that a trail keeps if it ends in this entry, still without its payload."""
    return MAX_HOPS if len(entry) <= LONG_ENTRY_BYTES else MAX_LONG_HOPS


def without_payloads(trail: list[Any]) -> list[Any]:
    """Return a trail without payloads, with ``large`` in their places."""
    return [
        {**{name: value for name, value in entry.items() if name != "payload"}, "large": True}
        if isinstance(entry, Mapping) and "payload" in entry
        else entry
        for entry in trail
    ]


@dataclass(frozen=True, slots=True)
class ClaimedPayload:
    """A payload as it was claimed; later changes by a handler do not affect it.

    Attributes:
        size: bytes of ``{"payload": payload}``.
        wrapped: those bytes, if they are few enough for a trail; else ``None``.
    """

    size: int
    wrapped: bytes | None


def keep_payload(payload: Any, encoding: Encoding) -> ClaimedPayload:
    """Encode a payload for a trail; a value decoded by the caller's own codec may fail to encode again."""
    try:
        raw = bytes(encoding.raw({"payload": payload}).raw)
    except Exception:
        # A caller's own codec may raise anything.
        return ClaimedPayload(SIZE_LIMIT, None)
    return ClaimedPayload(len(raw), raw if len(raw) <= MAX_KEPT_PAYLOAD_BYTES else None)


# --- items --------------------------------------------------------------------------------------


def state_of(document: Document, now: datetime) -> State:
    """Return the state that the fields mean at a time."""
    if document.get("processed") is not None:
        return "processed"
    if "when" not in document:
        return "blocked"
    due = document["when"] <= now
    if document.get("reserved"):
        return "expired" if due else "reserved"
    return "ready" if due else "scheduled"


bytes_of = attrgetter("_ObjectId__id" if hasattr(ObjectId, "_ObjectId__id") else "binary")
"""Returns the 12 bytes of an ObjectId; the driver's property makes a Python call for each."""


def id_key(id: Any) -> Any:
    """Return a key for an id in dicts and sets.

    It is much faster than an ObjectId, and it is hashable for any id that other programs may use.
    """
    return bytes_of(id) if type(id) is ObjectId else repr(id)


def id_keys(ids: Sequence[Any]) -> list[Any]:
    """Return the keys of many ids."""
    return [id_key(id) for id in ids]


def reservation_key(item: Any) -> Any:
    """Return a key for a reservation of an item; ``None`` if the item is not reserved.

    The key needs both id and token, because one token may hold several items.
    """
    if not isinstance(item, Item):
        return None
    if item._key is None and (token := item.token) is not None:
        item._key = id_key(item.id), id_key(token)
    return item._key


class Item(Generic[M]):
    """One item of a queue, as it was when it was read: frozen, picklable data. Operations are methods of the queue.

    Made by the queue. The envelope is kept as it came. Each attribute is read from it on access, because most
    attributes are never used.
    """

    __slots__ = ("_document", "_due", "_kept", "_key", "_namespace", "_now", "_payload", "_size")

    def __init__(
        self,
        document: Document,
        payload: M,
        now: datetime,
        namespace: str,
        due: datetime | None = None,
        *,
        kept: ClaimedPayload | None = None,
    ) -> None:
        self._document = document
        self._payload = payload
        self._now = now
        self._namespace = namespace
        self._due = due
        self._kept = kept
        # Bytes of the envelope as BSON; set only where a worker's claim has measured them.
        self._size = 0
        self._key: Any = None  # of its reservation, made when it is first asked for

    @property
    def id(self) -> ObjectId:
        """Identity for life; moves and burials keep it."""
        return self._document["_id"]  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        """Name of the queue that held it."""
        return self._document["q"]  # type: ignore[no-any-return]

    @property
    def payload(self) -> M:
        """The pushed payload, or the model built from it."""
        return self._payload

    @property
    def state(self) -> State:
        """Ready, scheduled, reserved, expired, blocked or processed.

        Expired: the lease was over, and it was not reserved again yet. Blocked: it waits for the item before it in its
        sequence.
        """
        return state_of(self._document, self._now)

    @property
    def due(self) -> datetime | None:
        """Time at which it became, or becomes, eligible; ``None`` when the envelope no longer contains it."""
        document = self._document
        return document.get("when") if self._due is None and not document.get("reserved") else self._due

    @property
    def lease_until(self) -> datetime | None:
        """End of the reservation; ``None`` when not reserved."""
        # One attribute access instead of two: every item of a batch is asked.
        document = self._document
        return document.get("when") if document.get("reserved") else None

    @property
    def priority(self) -> int:
        """Priority from -100 (first) to 100 (last)."""
        return self._document.get("priority", 0)  # type: ignore[no-any-return]

    @property
    def sequence(self) -> str | None:
        """Sequence in which it has, or had, its place; ``None`` for an item that waits for no other."""
        return self._document.get("sequence")

    @property
    def attempts(self) -> int:
        """Reservations in this queue so far, this one included."""
        attempts = self._document.get("attempts", 0)
        # Another program may have written a number that Python does not compare.
        return int(attempts.to_decimal()) if isinstance(attempts, Decimal128) else attempts

    @property
    def retries(self) -> int:
        """Reservations in this queue after the first one."""
        return max(self.attempts - 1, 0)

    @property
    def key(self) -> str | None:
        """Key given by the producer; ``None`` without one."""
        return self._document.get("key")

    @property
    def headers(self) -> Mapping[str, Any]:
        """Metadata given by the producer."""
        headers = self._document.get("headers")
        # Other programs may have written anything.
        return headers if isinstance(headers, Mapping) else {}

    @property
    def token(self) -> ObjectId | None:
        """Fence of this reservation; ``None`` when not reserved."""
        return self._document.get("token")

    @property
    def by(self) -> str | None:
        """Worker (``host:pid:random``) that holds, or last held, the item."""
        return self._document.get("by")

    @property
    def error(self) -> Failure | None:
        """The last failure; ``None`` without one."""
        error = self._document.get("error")
        # Other programs may have written anything.
        if not isinstance(error, Mapping) or not error.keys() >= {"type", "message", "at"}:
            return None
        return Failure(**{name: error[name] for name in Failure.__slots__ if name in error})

    @property
    def origin(self) -> Origin | None:
        """The source of a dead item or a copy; ``None`` for other items."""
        origin = self._document.get("origin")
        # Other programs may have written anything.
        if not isinstance(origin, Mapping) or not origin.keys() >= {"queue", "reason", "attempts", "at"}:
            return None
        given = {name: origin[name] for name in Origin.__slots__ if name in origin}
        return Origin(**{"id": self.id, "key": None, **given})

    @property
    def hops(self) -> int:
        """Number of its moves by stages, workers and callers; a letter that is sent back is not moved on."""
        return hops_counted(self._document.get("hops"))

    @property
    def trail(self) -> tuple[Hop, ...]:
        """Settlements by stages of pipelines, oldest first, if the stages record them."""
        return trail_of(self._document.get("trail"))

    @property
    def processed(self) -> datetime | None:
        """Time at which it was popped or committed; ``None`` before."""
        return self._document.get("processed")

    @property
    def once(self) -> datetime | None:
        """Time until which its id is remembered after it is settled; ``None`` if it is not."""
        return self._document.get("once")

    @property
    def start_by(self) -> datetime | None:
        """Time by which it must be started, if ``push(expires=)`` gave one; ``None`` once it was claimed.

        The item that a claim returns still has it. A processed item with a time before ``processed`` has expired.
        """
        return self._document.get("start_by")

    @property
    def namespace(self) -> str:
        """``database.collection`` that holds it."""
        return self._namespace

    @property
    def read_at(self) -> datetime:
        """Time of the read, on the server's clock; for a reserved item, the time of the claim."""
        return self._now

    @property
    def kept(self) -> ClaimedPayload | None:
        """Its payload as it was claimed, where a stage records payloads; else ``None``."""
        return self._kept

    @property
    def problem(self) -> str | None:
        """Why its document, written by another program, cannot be decoded as a whole; ``None`` for other items."""
        return getattr(self._document, "problem", None)

    def stored(self, field: str, default: Any = None) -> Any:
        """Return a field of its envelope as it is stored, or the default where the field is missing."""
        return self._document.get(field, default)

    def with_payload(self, payload: N) -> Item[N]:
        """Return this item with its payload in another form."""
        item = Item(self._document, payload, self._now, self._namespace, self._due, kept=self._kept)
        item._size = self._size
        return item

    def held_until(self, lease_until: datetime) -> Item[M]:
        """Return this item with another end of its lease."""
        item = with_stored(self, "when", lease_until)
        item._size = self._size
        return item

    def __eq__(self, other: object) -> bool:
        """Return whether all attributes are equal."""
        return isinstance(other, Item) and self._values() == other._values()

    def __hash__(self) -> int:
        """Return a hash of identity and reservation."""
        return hash((self._namespace, self.id, self.token))

    def __repr__(self) -> str:
        """Return the identifying attributes and the payload as text."""
        return (
            f"Item(id={self.id!r}, queue={self.queue!r}, state={self.state!r}, attempts={self.attempts}, "
            f"payload={self.payload!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor arguments for ``pickle``."""
        return Item, self._values(), (None, {"_kept": self._kept})

    def _values(self) -> tuple[Any, ...]:
        return self._document, self._payload, self._now, self._namespace, self._due


def has_place(item: Item[Any]) -> bool:
    """Return whether an item has a place in a sequence, so that another one may follow when it leaves."""
    document = item._document
    return "place" in document and isinstance(document.get("sequence"), str)


def find_held_target(item: Item[Any]) -> Target | None:
    """Return the sequence that a dead letter holds, as it was read; ``None`` for other items."""
    return held_target(item._document) if "origin" in item._document else None


def items_of(documents: Iterable[Document], now: datetime, namespace: str, dues: Iterable[datetime]) -> list[Item[Any]]:
    """Return the items in many envelopes, given the times at which each was due."""
    return [
        Item(document, document.get("payload"), now, namespace, due)
        for document, due in zip(documents, dues, strict=True)
    ]


def is_held_in(item: Item[Any], namespace: str, queue: str) -> bool:
    """Return whether an item is reserved, and from this queue."""
    document = item._document
    return document["q"] == queue and item._namespace == namespace and document.get("token") is not None


def with_stored(item: Item[M], field: str, value: Any) -> Item[M]:
    """Return an item with another value in a field of its envelope; its payload attribute does not change."""
    document = {**item._document, field: value}
    return Item(document, item._payload, item._now, item._namespace, item._due, kept=item._kept)


def delivery_hash(name: str, items: Iterable[Item[Any]]) -> str:
    """Return the SHA-256 of a stage's or queue's name and its items, as 64 hex digits.

    Every attempt of the same items has the same hash. An item that is moved round a loop has made more hops, and has
    another hash each time. An item joined from several has the parts of its inputs.
    """
    parts = sorted(part for item in items for part in delivery_parts(item.id, item.hops, item.stored("joined")))
    return hashlib.sha256("\0".join([name, *parts]).encode()).hexdigest()


def delivery_parts(id: Any, hops: int, joined: Any) -> list[str]:
    """Return an item's parts of a hash, from its id, its hops, and the field ``joined`` of its envelope."""
    inputs = joined.get("inputs") if isinstance(joined, Mapping) else None
    if not isinstance(inputs, list):
        return [f"{id}:{hops}" if hops else str(id)]
    parts = [delivery_parts(each.get("id"), hops_counted(each.get("hops")), None) for each in inputs]
    return [*(part for each in parts for part in each), f"joined {hops}"]
