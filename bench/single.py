"""Each single operation of mongoq beside the same command of the bare driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench import bare, operations, report, spy
from bench.measure import Comparison, Way, interleave
from bench.operations import Operation, Seed
from bench.place import Place
from bench.shells import SHELLS, Shell, bare_collection

__all__ = ["TARGET", "measure_shell"]

TARGET = 0.95
QUEUES = ("bench.mongoq", "bench.driver")
"""Names of one length for the two ways, which share a collection."""
CONTROL = Operation("push", "empty")
"""Measured against itself, to tell how much of a ratio is noise."""


def measure_shell(name: str, place: Place, wanted: list[Operation], *, rounds: int, calls: int) -> dict[str, Any]:
    """Measure operations in one shell, and the noise; ``result["operations"]`` has one entry for each."""
    with SHELLS[name](place.uri) as shell:
        pairs = _Pairs(shell, place)
        results = []
        for operation in wanted:
            comparison = interleave(shell.caller, *pairs.ways(operation), rounds=rounds, calls=calls)
            result = {"operation": operation.name, **_result(comparison), **pairs.same_commands(operation)}
            results.append(result)
            ratio = result["ratio"]
            report.progress(
                f"{name:8} {operation.name:20} {ratio['median']:.3f} ± {ratio['error']:.3f} of the bare driver, "
                f"{result['ratio_of_median_calls']['median']:.3f} by medians, "
                f"{result['mongoq']['median_us']:.0f} and {result['bare']['median_us']:.0f} µs"
            )
        control = pairs.driver(CONTROL)
        noise = interleave(shell.caller, control, control, rounds=rounds, calls=calls).rate_ratio()
        report.progress(f"{name:8} bare push            {noise.median:.3f} ± {noise.error:.3f} of itself")
        return {"operations": results, "bare_beside_itself": report.spread(noise)}


def _result(comparison: Comparison) -> dict[str, Any]:
    ratio = comparison.rate_ratio()
    return {
        "mongoq": report.latency(comparison.subject),
        "bare": report.latency(comparison.reference),
        "ratio": report.spread(ratio),
        "ratio_of_median_calls": report.spread(comparison.median_ratio()),
        "target": TARGET,
        "reached": ratio.median >= TARGET,
    }


class _Pairs:
    """Makes the two ways of an operation, on one client."""

    def __init__(self, shell: Shell, place: Place) -> None:
        self._shell = shell
        self._place = place
        self._seed = Seed(bare_collection(place.client, place.database, place.collection))
        self._spy = spy.Spy()
        self._plain = bare_collection(shell.client(), place.database, place.collection)
        self._spied = bare_collection(shell.client(self._spy), place.database, place.collection)
        self._brokers = {False: shell.broker(self._plain), True: shell.broker(self._spied)}

    def ways(self, operation: Operation) -> tuple[Way, Way]:
        return self.mongoq(operation), self.driver(operation)

    def mongoq(self, operation: Operation, *, spied: bool = False) -> Way:
        name = _queue(QUEUES[0], operation)
        queue = self._brokers[spied].queue(name, history=bare.HISTORY if operation.history else None)
        return Way(
            partial(operations.CALLS[operation.name], queue),
            self._prepared(operation, name, self._seed.items),
        )

    def driver(self, operation: Operation, *, spied: bool = False) -> Way:
        name = _queue(QUEUES[1], operation)
        collection = self._spied if spied else self._plain
        loop = bare.Bare(collection, name, "bench.elsewhere", operations.WORKER)
        return Way(
            partial(bare.CALLS[operation.name], loop),
            self._prepared(operation, name, _held),
            partial(_check, operation),
        )

    def _prepared(
        self, operation: Operation, queue: str, subjects: Callable[[list[dict[str, Any]]], list[Any]]
    ) -> Callable[[int], list[Any]]:
        def prepare(n: int) -> list[Any]:
            documents = self._seed.state(operation, queue, n)
            return subjects(documents) if documents else [operations.payload() for _ in range(n)]

        return prepare

    def same_commands(self, operation: Operation) -> dict[str, Any]:
        """Say whether both ways send the same commands, values aside; show them when they do not."""
        mongoq, driver = (
            [spy.shape(command) for command in self._commands(make(operation, spied=True))]
            for make in (self.mongoq, self.driver)
        )
        if mongoq == driver:
            return {"same_commands": True}
        return {"same_commands": False, "commands": {"mongoq": mongoq, "bare": driver}}

    def _commands(self, way: Way) -> list[dict[str, Any]]:
        return spy.sent(self._spy, self._shell.caller, way.call, list(way.prepare(3)))


def _queue(way: str, operation: Operation) -> str:
    """Name a queue; those that keep history are queues of their own, since it is a setting of the queue."""
    return f"{way}.kept" if operation.history else way


def _held(documents: list[dict[str, Any]]) -> list[bare.Held]:
    return [bare.Held(each["_id"], each.get("token", each["_id"]), each["when"]) for each in documents]


def _check(operation: Operation, replies: list[Any]) -> None:
    """Make sure that the bare loop did what mongoq does: found its item each time."""
    for reply in replies:
        changed = getattr(reply, "matched_count", getattr(reply, "deleted_count", 1))
        if not reply or not changed:
            raise RuntimeError(f"the bare loop of {operation.name!r} found nothing; the lease may have been over")
