"""Everything mongoq raises on its own account.

```text
MongoqError
├── ArgumentInvalid (ValueError)        an argument of the wrong type, sign or size
│   ├── QueueNameInvalid                a queue name that cannot be stored
│   ├── QueueUnknown                    a queue that no caller has used, most likely a name with a slip in it
│   ├── ScheduleUnknown                 a schedule that does not exist, most likely a name with a slip in it
│   ├── PayloadInvalid                  a value that BSON or the queue's model refuses
│   ├── PayloadTooLarge                 an item beyond the size the server can keep working with
│   ├── FilterInvalid                   a filter on payloads off the safe list, or one that the server refuses
│   └── PatchInvalid                    a patch off the safe list, or one that does not fit the payload
├── ItemForeign                         an item settled through a handle that does not own it
├── QueueNotEmpty                       a queue that was to be dropped holds live items
├── DuplicateItem                       a live item has the same key, or another push has used the same id
├── ReservationLost                     the fence: somebody else holds, or has settled, the item
├── BatchIncomplete                     some items of a batch failed, and the others are done
├── ConsumerBusy                        another query reads a queue under the name of this one
├── CollectionUnsuitable                a collection that mongoq cannot work on
│   ├── CollectionSharded
│   └── SchemaTooNew                    written by a later mongoq
├── TransactionsUnavailable             a server without transactions: it is no replica set
├── ServerUnavailable                   ``connect`` found no usable server
│   └── AuthenticationFailed
├── OutcomeInvalid (TypeError)          a handler returned what cannot be carried out
├── PartnerMissing                      an item is not joined, and there is no error queue to send it to
├── GraphInvalid (ValueError)           a pipeline whose stages do not go together; all faults at once
├── StageStopped                        a stage that has failed, and has no error queue; or a source
├── BrokerClosed                        used after ``close``
└── EmbeddedServerUnavailable           the private mongod cannot be started
```

Errors of the driver (network, authorisation) pass through unwrapped from every operation; only ``connect``
turns them into a sentence, with the driver's error as ``__cause__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime


class MongoqError(Exception):
    """The root of all errors of mongoq."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state, since the constructors take values and not the message."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[MongoqError], args: tuple[Any, ...], state: dict[str, Any]) -> MongoqError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ArgumentInvalid(MongoqError, ValueError):
    """An argument that no command could be built from. Nothing was sent.

    Attributes:
        argument: the name of the argument.
        problem: what is wrong with it.
    """

    def __init__(self, argument: str, problem: str) -> None:
        text = f"{argument}: {problem}"
        super().__init__(text.encode(errors="backslashreplace").decode())  # a key may have lone surrogates
        self.argument = argument
        self.problem = problem


class QueueNameInvalid(ArgumentInvalid):
    """A queue name that is empty, too long, holds NUL, begins with ``$``, or is no string."""


def _say_nearest(kind: str, name: str, nearest: Sequence[str], namespace: str) -> str:
    names = ", ".join(map(repr, nearest))
    hint = f"the nearest names are {names}" if nearest else f"and no {kind} in it has a similar name"
    return f"there is no {kind} {name!r} in {namespace}; {hint}"


class QueueUnknown(ArgumentInvalid):
    """A read of a queue, or a replay from one, that no caller has used: its name is most likely misspelt.

    Nothing was changed. A replay raises it only where another queue has a similar name.

    Attributes:
        queue: the name that was given.
        nearest: the names that are most like it, the nearest first; there may be none.
    """

    def __init__(self, queue: str, nearest: Sequence[str], namespace: str) -> None:
        super().__init__("queue", _say_nearest("queue", queue, nearest, namespace))
        self.queue = queue
        self.nearest = tuple(nearest)


class ScheduleUnknown(ArgumentInvalid):
    """A schedule that is not defined: its name is most likely misspelt, or it was removed. Nothing was changed.

    Attributes:
        schedule: the name that was given.
        nearest: the names that are most like it, the nearest first; there may be none.
    """

    def __init__(self, schedule: str, nearest: Sequence[str], namespace: str) -> None:
        super().__init__("schedule", _say_nearest("schedule", schedule, nearest, namespace))
        self.schedule = schedule
        self.nearest = tuple(nearest)


PATH_LENGTH = 160
"""Characters of a path in a message; beyond, half of them are shown, so that the reason stays in sight."""


class PayloadInvalid(ArgumentInvalid):
    """A value that BSON cannot hold and give back equal, or that the queue's model refuses.

    Attributes:
        path: where in the value, such as ``payload.lines[2].at``; the argument's name alone for the whole.
        item: the raw item when it came from the server, with the payload as it is stored; else ``None``.
        raw: the whole document in BSON, where it cannot be decoded; its ``item`` has U+FFFD for what is not UTF-8 then.
            Else ``None``.
    """

    def __init__(self, path: str, problem: str, *, item: Any = None, raw: bytes | None = None) -> None:
        super().__init__(path if len(path) <= PATH_LENGTH else f"{path[: PATH_LENGTH // 2]}…", problem)
        self.path = path
        self.item = item
        self.raw = raw


class PayloadTooLarge(ArgumentInvalid):
    """A value beyond the limit, found before anything was sent.

    Attributes:
        size: its size in bytes as BSON.
        limit: the largest size allowed, in bytes.
    """

    def __init__(self, argument: str, size: int, limit: int) -> None:
        super().__init__(argument, f"{size:,} bytes as BSON, and {limit:,} is the limit; store a reference instead")
        self.size = size
        self.limit = limit


class PatchInvalid(ArgumentInvalid):
    """A patch with an operator or a path that is not allowed, or that does not fit the stored payload.

    The item is untouched and still reserved.
    """


class FilterInvalid(ArgumentInvalid):
    """A filter on payloads with an operator or a path that is not allowed, or one that the server refuses.

    ``argument`` leads to the place in the filter, such as ``where.$or[1].customer.$gt``.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument if len(argument) <= PATH_LENGTH else f"{argument[: PATH_LENGTH // 2]}…", problem)


class ItemForeign(MongoqError):
    """An item settled through a handle of another queue or another collection. Nothing was sent.

    Attributes:
        item_id: the item.
        expected: where this handle works, as ``collection/queue``.
        actual: where the item was reserved.
    """

    def __init__(self, item_id: Any, expected: str, actual: str) -> None:
        super().__init__(
            f"item {item_id} was reserved from {actual} and cannot be settled through a handle of {expected}; "
            f"use a handle of the queue it came from"
        )
        self.item_id = item_id
        self.expected = expected
        self.actual = actual


class QueueNotEmpty(MongoqError):
    """A queue that was to be dropped holds live items: ready, scheduled, reserved or expired ones. Nothing was deleted.

    Attributes:
        queue: the queue.
        items: how many live items it held.
    """

    def __init__(self, queue: str, items: int) -> None:
        content = "a live item" if items == 1 else f"{items:,} live items"
        hint = "settle or purge them first, or throw them away with drop_queue(..., force=True)"
        super().__init__(f"queue {queue!r} holds {content}; {hint}")
        self.queue = queue
        self.items = items


class DuplicateItem(MongoqError):
    """A live item of the queue has the key already, or a push to another queue has used the id. Nothing was changed.

    Attributes:
        queue: the queue of the item that is in the way.
        key: the key; ``None`` when the id is in the way.
        item_id: the item in the way, or ``None`` when it was gone before it could be named.
        id: the id that the push was given; ``None`` when the key is in the way.
    """

    def __init__(self, queue: str, key: str | None, item_id: Any, *, id: Any = None, to: str = "") -> None:
        super().__init__(
            f"id {id} is taken: queue {queue!r} has it, live, in its history or remembered, from another push than "
            f"this one to {to!r}; ids are unique in a collection, so give each push an id of its own"
            if key is None
            else f"{'an item' if item_id is None else f'item {item_id}'} with key {key!r} is live in queue {queue!r}; "
            "leave it at that, or push with on_duplicate='replace'; a move needs another key, or none"
        )
        self.queue = queue
        self.key = key
        self.item_id = item_id
        self.id = id


class ReservationLost(MongoqError):
    """The caller no longer holds the item, so the operation changed nothing.

    The lease ran out and another worker took the item, or it was settled, replaced or removed in the meantime.
    With ``certain=False`` the reply was lost and the server can no longer say whether the operation happened:
    it may have.

    Attributes:
        item_id: the item.
        queue: the queue it was reserved from.
        held_by: the worker that holds it now (``host:pid:random``), or ``None`` when nobody does.
        held_until: end of that worker's lease, or ``None``.
        certain: whether the operation is known not to have happened.
    """

    def __init__(
        self,
        item_id: Any,
        queue: str,
        *,
        held_by: str | None = None,
        held_until: datetime | None = None,
        certain: bool = True,
        reserved: bool = True,
    ) -> None:
        lost = f"the reservation of item {item_id} of queue {queue!r} is lost"
        if not reserved:
            sentence = f"item {item_id} of queue {queue!r} was not reserved; settle what reserve() returned"
        elif not certain:
            sentence = (
                f"whether this operation has settled item {item_id} of queue {queue!r} cannot be told: "
                f"it may or may not have happened, and nothing is lost; make the handler idempotent"
            )
        elif held_by is None:
            sentence = (
                f"{lost}, and nobody holds the item now: it was settled, perhaps by an earlier call of yours, "
                f"replaced, released or removed; discard this result"
            )
        else:
            sentence = (
                f"{lost}: {held_by} holds it until {held_until}; discard this result, and extend the lease of long work"
            )
        super().__init__(sentence)
        self.item_id = item_id
        self.queue = queue
        self.held_by = held_by
        self.held_until = held_until
        self.certain = certain


MAX_NAMED_IDS = 10
"""Ids that a message names."""


def name_ids(ids: Sequence[Any]) -> str:
    """Return the first ids as text for a message."""
    return ", ".join(map(str, ids[:MAX_NAMED_IDS])) + ("…" if len(ids) > MAX_NAMED_IDS else "")


class BatchIncomplete(MongoqError):
    """Some items of a batch failed; the others are done.

    ``failed`` tells of each what happened to it. An item that its holder lost is a ``ReservationLost`` and a patch that
    does not fit a ``PatchInvalid``, as for one item alone. A ``ReservationLost`` that is not ``certain`` stands for one
    of several that are gone, done by this call or settled before: of deletes the server tells only how many there were.
    An error of the driver stands for an item whose command failed: after a network error it may have happened.

    Attributes:
        queue: the queue.
        done: the ids of the items that are done, in no particular order.
        failed: the error of each other item, by its id.
    """

    def __init__(self, queue: str, done: Iterable[Any], failed: Mapping[Any, Exception]) -> None:
        self.queue = queue
        self.done = list(done)
        self.failed = dict(failed)
        first = next(iter(self.failed.values()))
        named = name_ids(list(self.failed))
        super().__init__(
            f"{len(self.failed)} of {len(self.done) + len(self.failed)} items of queue {queue!r} failed ({named})"
            f"{', and the others are done' if self.done else ''}; look into .failed for each; "
            f"the first: {type(first).__name__}: {first}"
        )


class ConsumerBusy(MongoqError):
    """A stream that reads a queue cannot run, or not any more: one query at a time reads under a consumer's name.

    Attributes:
        consumer: the name.
        held_by: the process that runs the other query (``host:pid:random``); ``None`` when there is none any more.
        held_until: until when it does, unless it goes on.
    """

    def __init__(self, consumer: str, held_by: str | None, held_until: datetime | None) -> None:
        super().__init__(
            f"the run of consumer {consumer!r} was ended and what it held was given back, by release_claims or by "
            f"another query that has ended since; start the query again"
            if held_by is None
            else f"consumer {consumer!r} is busy: {held_by} runs a query under this name until {held_until} and "
            f"longer; stop that query, or choose another name for this one by the option consumer"
        )
        self.consumer = consumer
        self.held_by = held_by
        self.held_until = held_until


class CollectionUnsuitable(MongoqError):
    """A collection that mongoq cannot work on. Nothing was written.

    Attributes:
        namespace: ``database.collection``.
    """

    def __init__(self, namespace: str, problem: str) -> None:
        super().__init__(f"{namespace} {problem}")
        self.namespace = namespace


class CollectionSharded(CollectionUnsuitable):
    """A sharded collection: a move changes ``q``, and findAndModify wants the shard key."""

    def __init__(self, namespace: str) -> None:
        super().__init__(
            namespace, "is sharded; use an unsharded collection, and several of them to spread the load over shards"
        )


class SchemaTooNew(CollectionUnsuitable):
    """The collection was written by a later mongoq that this version would damage.

    Attributes:
        version: the schema version found.
        oldest_reader: the oldest schema version that may work on the collection.
        supported: the schema version of this mongoq.
    """

    def __init__(self, namespace: str, version: int, oldest_reader: int, supported: int) -> None:
        super().__init__(
            namespace,
            f"has schema version {version}, which needs a mongoq of schema {oldest_reader} or later, and this one "
            f"knows schema {supported}; upgrade mongoq-driver",
        )
        self.version = version
        self.oldest_reader = oldest_reader
        self.supported = supported


NO_REPLICA_SET = (
    "need a replica set, and this is {}; a set of one node will do: start mongod with --replSet rs0 and call "
    "rs.initiate() once in mongosh, or use mongoq.embedded.EmbeddedServer()"
)
NO_VIRTUAL = (
    "need a server, and this is a virtual broker, which has none: take the fixture mongoq_broker or "
    "mongoq_async_broker for this test, or mongoq.embedded.EmbeddedServer()"
)
VIRTUAL = "mongomock"
"""What stands behind a virtual broker, and takes the place of a server in messages."""


class TransactionsUnavailable(MongoqError):
    """The server has no transactions, since it is not part of a replica set. Nothing was written.

    Attributes:
        server: what the broker works on, such as ``a standalone server at localhost:27017``, or ``mongomock`` for a
            virtual broker.
        needed_by: the parts of a pipeline that cannot do without, such as ``source 'rows'``; none when it was a call.
    """

    def __init__(self, server: str, *, needed_by: Iterable[str] = ()) -> None:
        self.server = server
        self.needed_by = tuple(needed_by)
        whose = f" of {', '.join(self.needed_by)}" if self.needed_by else ""
        super().__init__(f"transactions{whose} {NO_VIRTUAL if server == VIRTUAL else NO_REPLICA_SET.format(server)}")


class ServerUnavailable(MongoqError):
    """``connect`` found no server it could use; the driver's error is the ``__cause__``."""


class AuthenticationFailed(ServerUnavailable):
    """The server refused the credentials, or the user may not use the database."""


class OutcomeInvalid(MongoqError, TypeError):
    """A handler returned what cannot be an outcome. Its items failed, as if it had raised this."""


class PartnerMissing(MongoqError):
    """An item that was to be joined found no partner in time, or came too late for it, and there is no error queue.

    Attributes:
        item_id: its id.
        queue: the queue that it came by.
        reason: what is missing.
    """

    def __init__(self, item_id: Any, queue: str, reason: str) -> None:
        super().__init__(f"item {item_id} of queue {queue!r}: {reason}; give the join an error queue")
        self.item_id = item_id
        self.queue = queue
        self.reason = reason


SHOWN_FAULTS = 100
"""Faults of a pipeline that its error shows; a hostile recipe has as many as it has keys."""


class GraphInvalid(MongoqError, ValueError):
    """The stages of a pipeline, or a recipe, do not go together. Nothing was started.

    Attributes:
        pipeline: its name.
        faults: all that is wrong with it, a sentence each.
    """

    def __init__(self, pipeline: str, faults: Sequence[str]) -> None:
        lines = "".join(f"\n- {fault}" for fault in faults[:SHOWN_FAULTS])
        more = f"\n- and {len(faults) - SHOWN_FAULTS:,} more, in faults" if len(faults) > SHOWN_FAULTS else ""
        super().__init__(f"pipeline {pipeline!r} has {len(faults):,} fault{'s' * (len(faults) != 1)}:{lines}{more}")
        self.pipeline = pipeline
        self.faults = tuple(faults)


class StageStopped(MongoqError):
    """A stage of a pipeline has stopped, since an item has failed for good and there is no error queue to send it to.

    The item is back in its queue, and is run again when the stage starts again. The ``__cause__`` is the error of the
    handler.

    Or a source has stopped, since it raised an error, the ``__cause__``, or yielded what cannot be pushed. What it
    yielded before is in its queue; started again, it goes on behind that.

    Attributes:
        stage: the name of the stage or the source.
        queue: the queue of the item, or that the source pushes to.
        item_id: the item; ``None`` for a source.
    """

    def __init__(self, stage: str, queue: str, item_id: Any) -> None:
        super().__init__(
            f"source {stage!r} has stopped: it raised an error, or yielded what cannot be pushed to queue {queue!r}; "
            f"what it yielded before is there; mend it, and start again"
            if item_id is None
            else f"stage {stage!r} has stopped: item {item_id} of queue {queue!r} has failed for good, and there is no "
            f"error queue; give the pipeline one (errors=), mend the handler, or remove the item, and start again"
        )
        self.stage = stage
        self.queue = queue
        self.item_id = item_id


class BrokerClosed(MongoqError):
    """The broker was closed; connect again."""

    def __init__(self) -> None:
        super().__init__("this broker was closed; a worker ends here, others make a new one with mongoq.connect()")


class EmbeddedServerUnavailable(MongoqError):
    """No mongod was found, or it did not start; the message says what to do."""
