"""Cuts the items of a batch into commands, and raises the error of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, BatchIncomplete, MongoqError, PayloadInvalid, PayloadTooLarge
from mongoq.protocol.flow.commands import Interruption

__all__ = ["IDS", "chunks", "finish", "own_error", "placed"]

T = TypeVar("T")

IDS = 10_000
"""Items of one command, at most."""
BYTES = 16 * 1024 * 1024


def chunks(
    parts: Sequence[T], size: Callable[[T], int], *, items: Callable[[T], int] | None = None, most: int = IDS
) -> Iterator[list[T]]:
    """Cut parts into chunks of at most ``most`` parts, 10,000 items and 16 MiB; a larger part is a chunk of its own."""
    if items is None and len(parts) <= min(most, IDS) and sum(map(size, parts)) <= BYTES:
        yield from [list(parts)] if parts else []
        return
    run: list[T] = []
    total = number = 0
    for part in parts:
        more, count = size(part), 1 if items is None else items(part)
        if run and (len(run) == most or total + more > BYTES or number + count > IDS):
            yield run
            run, total, number = [], 0, 0
        run.append(part)
        total, number = total + more, number + count
    if run:
        yield run


def finish(queue: str, done: Iterable[ObjectId], failed: Mapping[ObjectId, Exception]) -> None:
    """Raise the error of a batch, if any: the driver's own error when nothing was done and nothing else is known."""
    if not failed:
        return
    first = next(iter(failed.values()))
    if not list(done) and not any(isinstance(error, MongoqError) for error in failed.values()):
        raise first
    raise BatchIncomplete(queue, done, failed) from first


def own_error(error: Exception) -> Exception:
    """Return the driver's error behind an interruption; any other error unchanged."""
    return error.cause if isinstance(error, Interruption) else error


def placed(error: ArgumentInvalid, place: str, root: str = "") -> ArgumentInvalid:
    """Return the error with its place in the caller's argument: ``payloads[3].a`` instead of ``payload.a``."""
    if isinstance(error, PayloadInvalid):
        return PayloadInvalid(place + error.path.removeprefix(root), error.problem, item=error.item, raw=error.raw)
    argument = place + error.argument.removeprefix(root)
    if isinstance(error, PayloadTooLarge):
        return PayloadTooLarge(argument, error.size, error.limit)
    return type(error)(argument, error.problem)
