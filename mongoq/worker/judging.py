"""What a run came to: the outcome of each of its items, from what the handler returned or raised."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from mongoq.errors import OutcomeInvalid
from mongoq.model.item import Item
from mongoq.model.outcomes import Failed, Outcome, Retry
from mongoq.worker.consumer import Consumer

__all__ = ["failure", "failures", "outcomes"]

Verdict = Outcome | None


def outcomes(consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> list[Verdict]:
    """Return what becomes of the items of a run that has ended by itself; ``None`` is success.

    Raises:
        OutcomeInvalid: the handler returned what cannot be an outcome, or is most likely a mistake.
    """
    if consumer.batch is None:
        return [_outcome(consumer, items[0], _single(returned))]
    if returned is None:
        return [None] * len(items)
    if not isinstance(returned, list | tuple):
        raise OutcomeInvalid(f"a batch handler returns None or a list, an entry per item, not {_shown(returned)}")
    if len(returned) != len(items):
        raise OutcomeInvalid(f"a batch of {len(items)} items got {len(returned)} outcomes; return one per item")
    return [_outcome(consumer, item, _entry(one)) for item, one in zip(items, returned, strict=True)]


def _single(returned: Any) -> Any:
    """Any value is success, but for what is most likely a mistake."""
    if isinstance(returned, type) and issubclass(returned, Outcome):
        raise OutcomeInvalid(f"the class {returned.__name__} was returned; return {returned.__name__}(…)")
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise OutcomeInvalid(f"{_shown(returned)} was returned, and nobody awaits it; make the handler `async def`")
    return returned if isinstance(returned, Outcome) else None


def _entry(entry: Any) -> Any:
    if entry is None or isinstance(entry, BaseException):
        return entry
    if not isinstance(_single(entry), Outcome):
        raise OutcomeInvalid(f"an entry for an item is None, an outcome or an exception, not {_shown(entry)}")
    return entry


def _shown(value: Any) -> str:
    return type(value).__name__


def _outcome(consumer: Consumer, item: Item[Any], told: Any) -> Verdict:
    if isinstance(told, BaseException):
        return failure(consumer, item, told)
    if isinstance(told, Retry):
        delay = consumer.retry.delay(max(item.attempts, 1)) if told.delay is None else told.delay
        return Failed(told.error, delay)
    return told  # type: ignore[no-any-return]  # an outcome, or None


def failure(consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> Verdict:
    """Return what becomes of an item whose run has failed: success after all, or another run later."""
    if isinstance(error, consumer.success_on):
        return None
    return Failed(error, consumer.retry.delay(max(item.attempts, 1)))


def failures(consumer: Consumer, items: Sequence[Item[Any]], error: BaseException) -> list[Verdict]:
    """Return the same for all items of a run."""
    return [failure(consumer, item, error) for item in items]
