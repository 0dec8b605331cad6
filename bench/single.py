"""Each single operation of mongoq beside the same command of the bare driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench import bare, operations, report
from bench.measure import Way, interleave
from bench.operations import Operation
from bench.pairs import QUEUES, Pairs, compare, line, queue_name
from bench.place import Place
from bench.shells import SHELLS

__all__ = ["TARGET", "measure_shell"]

TARGET = 0.95
CONTROL = Operation("push", "empty")
"""Measured against itself, to tell how much of a ratio is noise."""


def measure_shell(name: str, place: Place, wanted: list[Operation], *, rounds: int, calls: int) -> dict[str, Any]:
    """Measure operations in one shell, and the noise; ``result["operations"]`` has one entry for each."""
    with SHELLS[name](place.uri) as shell:
        pairs = Pairs(shell, place)
        results = []
        for operation in wanted:
            mongoq, driver = partial(_mongoq, pairs, operation), partial(_driver, pairs, operation)
            comparison = interleave(shell.caller, mongoq(False), driver(False), rounds=rounds, calls=calls)
            result = {"operation": operation.name, **compare(comparison, TARGET)}
            results.append(result | pairs.same_commands(mongoq, driver))
            report.progress(line(name, operation.name, result))
        control = _driver(pairs, CONTROL, False)
        noise = interleave(shell.caller, control, control, rounds=rounds, calls=calls).rate_ratio()
        report.progress(f"{name:8} {'bare push':26} {noise.median:.3f} ± {noise.error:.3f} of itself")
        return {"operations": results, "bare_beside_itself": report.spread(noise)}


def _mongoq(pairs: Pairs, operation: Operation, spied: bool) -> Way:
    name = queue_name(QUEUES[0], history=operation.history)
    queue = pairs.brokers[spied].queue(name, history=bare.HISTORY if operation.history else None)
    call = partial(operations.CALLS[operation.name], queue)
    return Way(call, _preparer(pairs, operation, name, pairs.seed.items))


def _driver(pairs: Pairs, operation: Operation, spied: bool) -> Way:
    name = queue_name(QUEUES[1], history=operation.history)
    loop = bare.Bare(pairs.collections[spied], name, "bench.elsewhere", operations.WORKER)
    call = partial(bare.CALLS[operation.name], loop)
    return Way(call, _preparer(pairs, operation, name, _reservations), partial(_check, operation))


def _preparer(
    pairs: Pairs, operation: Operation, queue: str, subjects: Callable[[list[dict[str, Any]]], list[Any]]
) -> Callable[[int], list[Any]]:
    def prepare(n: int) -> list[Any]:
        documents = pairs.seed.state(operation, queue, n)
        return subjects(documents) if documents else [operations.payload() for _ in range(n)]

    return prepare


def _reservations(documents: list[dict[str, Any]]) -> list[bare.Held]:
    return [bare.Held(each["_id"], each.get("token", each["_id"]), each["when"]) for each in documents]


def _check(operation: Operation, replies: list[Any]) -> None:
    """Check that the bare loop found its item each time, as mongoq does."""
    for reply in replies:
        changed = getattr(reply, "matched_count", getattr(reply, "deleted_count", 1))
        if not reply or not changed:
            raise RuntimeError(f"the bare loop of {operation.name!r} found nothing; the lease may have been over")
