# Generated from mongoq/telemetry/aio/operations.py by scripts/unasync.py. Do not edit.
"""Observed operations: those of brokers and workers, each with a span and a duration.

An observed operation takes the place of the one that it calls, by the observer of the driver. It changes no result and
no error.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mongoq.data.encoding.codec import Encoding
from mongoq.data.item import Item
from mongoq.data.push_options import check_headers
from mongoq.sync import operations
from mongoq.sync.operations import ClaimedBatch, Draft, Push, PutOff, QueueContext, SettledByToken, Yielded
from mongoq.telemetry import conventions
from mongoq.telemetry.conventions import Operation
from mongoq.telemetry.recorder import Recorder, Recording

Work = Callable[..., Any]


def observe_operations(recorder: Recorder) -> Mapping[Work, Work]:
    """Return the observed operations, by those whose place they take."""
    settled_alone: dict[Work, Operation] = {
        operations.commit: conventions.COMMIT,
        operations.rollback: conventions.ROLLBACK,
        operations.move: conventions.MOVE,
        operations.release: conventions.RELEASE,
        operations.bury: conventions.BURY,
    }
    settled_together: dict[Work, Operation] = {
        operations.commit_many: conventions.COMMIT,
        operations.rollback_many: conventions.ROLLBACK,
        operations.release_many: conventions.RELEASE,
        operations.move_many: conventions.MOVE,
        operations.apply_outcomes: conventions.SETTLE,
        operations.apply_outcomes_at_most_once: conventions.SETTLE,
    }
    claims: dict[Work, Operation] = {
        operations.pop: conventions.POP,
        operations.reserve: conventions.RESERVE,
        operations.reserve_many: conventions.RESERVE,
        operations.claim_batch: conventions.RESERVE,
        operations.claim_lapsed: conventions.RESERVE,
        operations.take_over: conventions.RESERVE,
    }
    return {
        operations.push: partial(_push, recorder, operations.push),
        operations.push_many: partial(_push, recorder, operations.push_many),
        operations.push_each: partial(_push_each, recorder),
        operations.push_records: partial(_push_records, recorder),
        operations.next_claim: partial(_next_claim, recorder),
        operations.settle_claim: partial(_settle_claim, recorder),
        operations.settle_held: partial(_settle_held, recorder),
        operations.apply_outcomes_of_queues: partial(_apply_outcomes_of_queues, recorder),
        **{work: partial(_claim, recorder, work, operation) for work, operation in claims.items()},
        **{work: partial(_settle, recorder, work, operation) for work, operation in settled_alone.items()},
        **{work: partial(_settle_many, recorder, work, operation) for work, operation in settled_together.items()},
    }


# --- pushes --------------------------------------------------------------------------------------


def _push(
    recorder: Recorder, work: Work, context: QueueContext[Any], what: Any, *, headers: Any = None, **options: Any
) -> Any:
    with recorder.begin(conventions.PUSH, context.name) as recording:
        written = recorder.propagation.write(headers, recording.span, context.broker.encoding)
        pushed = work(context, what, headers=written, **options)
        _describe_ids(recording, pushed if isinstance(pushed, list) else [pushed], is_batch=isinstance(pushed, list))
    return pushed


def _push_records(recorder: Recorder, context: QueueContext[Any], lease: Any, batch: Sequence[Yielded]) -> int:
    """Push records of a source: they begin a trace, by one span for all of them."""
    with recorder.begin(conventions.PUSH, context.name) as recording:
        add = _add_headers(recorder, recording, context.broker.encoding)
        batch = [one._replace(draft=replace(one.draft, headers=add(one.draft.headers))) for one in batch]
        pushed: int = operations.push_records(context, lease, batch)
        recording.set_attributes({conventions.BATCH_COUNT: pushed})
    return pushed


def _push_each(
    recorder: Recorder,
    context: QueueContext[Any],
    options: Sequence[Draft],
    pushes: Sequence[Push],
    **remember: Any,
) -> None:
    """Push rows of Spark; those that were made of items keep the trace of their headers, and are linked to it."""
    with recorder.begin(conventions.PUSH, context.name) as recording:
        encoding = context.broker.encoding
        if recording.span.is_recording():
            recording.set_attributes({conventions.BATCH_COUNT: len(pushes)})
            own = (encoding.decode_sendable(one.headers) for one in options if one.headers is not None)
            recording.add_links(recorder.propagation.linked_contexts(own))
        add = _add_headers(recorder, recording, encoding)
        options = [replace(one, headers=add(one.headers)) for one in options]
        operations.push_each(context, options, pushes, **remember)


def _add_headers(recorder: Recorder, recording: Recording, encoding: Encoding) -> Callable[[Any], Any]:
    """Return a function that adds the trace context to headers in the form to send; ``None`` stands for no headers."""
    written = recorder.propagation.write(None, recording.span, encoding)
    # Most items have no headers of their own, and share these.
    shared = check_headers(written, encoding) if written else None

    def add(headers: Any) -> Any:
        if headers is None or shared is None:
            return headers or shared
        own = encoding.decode_sendable(headers)
        added = recorder.propagation.write(own, recording.span, encoding)
        return headers if added is own else check_headers(added, encoding)

    return add


# --- claims --------------------------------------------------------------------------------------


def _claim(
    recorder: Recorder, work: Work, operation: Operation, context: QueueContext[Any], *args: Any, **options: Any
) -> Any:
    """Claim items; a claim that finds none has no span, since idle consumers claim again and again."""
    began = time.perf_counter()
    try:
        claimed = work(context, *args, **options)
    except Exception as error:  # a cancelled wait is no failure
        recorder.begin(operation, context.name, began=time.perf_counter() - began).end(error)
        raise
    seconds, found = time.perf_counter() - began, claimed
    if isinstance(claimed, ClaimedBatch):
        # The claim of a worker waits for work as long as it takes; only its commands are of interest.
        seconds, found = claimed.seconds, claimed.items
    elif isinstance(claimed, tuple):  # an exclusive claim also says whether the last lease ran out
        found = claimed[0]
    if found:
        with recorder.begin(operation, context.name, began=seconds) as recording:
            is_batch = isinstance(claimed, list | ClaimedBatch)
            _describe_items(recorder, recording, found if is_batch else [found], is_batch=is_batch)
    return claimed


def _next_claim(recorder: Recorder, context: QueueContext[Any], *args: Any, **options: Any) -> Any:
    """Claim the next batch of a stream, which knows the ids of its items and not their headers: no links."""
    began = time.perf_counter()
    claim = operations.next_claim(context, *args, **options)
    if claim is not None:
        with recorder.begin(conventions.RESERVE, context.name, began=time.perf_counter() - began) as recording:
            recording.set_attributes({conventions.BATCH_COUNT: len(claim.ids or ())})
    return claim


# --- settlements ---------------------------------------------------------------------------------


def _settle(
    recorder: Recorder,
    work: Work,
    operation: Operation,
    context: QueueContext[Any],
    item: Any,
    *args: Any,
    **options: Any,
) -> Any:
    with recorder.begin(operation, context.name) as recording:
        _describe_items(recorder, recording, [item], is_batch=False)
        return work(context, item, *args, **options)


def _settle_many(
    recorder: Recorder,
    work: Work,
    operation: Operation,
    context: QueueContext[Any],
    items: Any,
    *args: Any,
    **options: Any,
) -> Any:
    # Any iterable, which is read once; anything else is refused by the operation.
    entries = list(items) if isinstance(items, Iterable) else []
    given = entries if isinstance(items, Iterable) else items
    settled = [entry[0] if isinstance(entry, tuple) and entry else entry for entry in entries]
    settle = partial(work, context, given, *args, **options)
    return _settle_items(recorder, operation, context.name, settled, settle)


def _apply_outcomes_of_queues(recorder: Recorder, parts: Iterable[Any], *args: Any) -> Any:
    """Settle items of several queues, such as the sides of a join: the span has the name of the first."""
    entries = [(context, list(outcomes)) for context, outcomes in parts]
    items = [item for _, outcomes in entries for item, _ in outcomes]
    first = next((context.name for context, outcomes in entries if outcomes), "")
    make = partial(operations.apply_outcomes_of_queues, entries, *args)
    return _settle_items(recorder, conventions.SETTLE, first, items, make)


def _settle_items(
    recorder: Recorder, operation: Operation, queue: str, items: Sequence[Any], settle: Callable[[], Any]
) -> Any:
    if not items:
        return settle()
    with recorder.begin(operation, queue) as recording:
        _describe_items(recorder, recording, items, is_batch=True)
        result = settle()
        if isinstance(result, Mapping):  # the errors of items that were not settled
            errors = [error for error in result.values() if not isinstance(error, PutOff)]
            if errors:
                recording.fail(errors[0])
    return result


def _settle_claim(recorder: Recorder, context: QueueContext[Any], *args: Any) -> int:
    """Settle what is left of the batch of a stream; one that a sink has settled is not worth a span."""
    began = time.perf_counter()
    settled = operations.settle_claim(context, *args)
    if settled:
        with recorder.begin(conventions.COMMIT, context.name, began=time.perf_counter() - began) as recording:
            recording.set_attributes({conventions.BATCH_COUNT: settled})
    return settled


def _settle_held(recorder: Recorder, broker: Any, fenced_items: Sequence[Any]) -> SettledByToken:
    """Settle items of rows of Spark; only the operation finds out which queues they are in."""
    began = time.perf_counter()
    try:
        result = operations.settle_held(broker, fenced_items)
    except BaseException as error:
        recorder.begin(conventions.SETTLE, "", began=time.perf_counter() - began).end(error)
        raise
    queue = min(result.queues, default="")
    with recorder.begin(conventions.SETTLE, queue, began=time.perf_counter() - began) as recording:
        recording.set_attributes({conventions.BATCH_COUNT: result.done})
        if result.failed:
            recording.fail(next(iter(result.failed.values())))
    return result


# --- descriptions --------------------------------------------------------------------------------


def _describe_items(recorder: Recorder, recording: Recording, items: Sequence[Any], *, is_batch: bool) -> None:
    """Set the ids or the number of items, and link the span to their traces."""
    if not recording.span.is_recording():
        return
    _describe_ids(recording, [item.id for item in items if isinstance(item, Item)], is_batch=is_batch)
    recording.add_links(recorder.propagation.span_contexts(items))


def _describe_ids(recording: Recording, ids: Sequence[Any], *, is_batch: bool) -> None:
    """By the conventions, only operations on batches have a number of messages."""
    number = len(ids) if is_batch else None
    single = str(ids[0]) if len(ids) == 1 else None
    recording.set_attributes({conventions.BATCH_COUNT: number, conventions.MESSAGE_ID: single})
