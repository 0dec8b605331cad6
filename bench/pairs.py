"""Two ways side by side: mongoq's and the driver's, on one client, and again on a client with a command listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import report, spy
from bench.measure import Comparison, Way
from bench.operations import Seed
from bench.place import Place
from bench.shells import Shell, bare_collection
from mongoq.data.process import Counters, Event

__all__ = ["QUEUES", "Pairs", "compare", "line", "queue_name", "silence"]

QUEUES = ("bench.mongoq", "bench.driver")
"""Names of one length for the two ways, which share a collection."""

Make = Callable[[bool], Way]
"""Makes a way, given whether it is listened to."""


class Pairs:
    """The collections and brokers of the two ways of a shell.

    Attributes:
        seed: brings the collection into a state.
        collections: the driver's, by whether it is listened to.
        brokers: mongoq's, likewise; one that is listened to does not write counters meanwhile.
    """

    def __init__(self, shell: Shell, place: Place) -> None:
        self._shell = shell
        self._spy = spy.Spy()
        self.seed = Seed(bare_collection(place.client, place.database, place.collection))
        self.collections: dict[bool, Any] = {
            False: bare_collection(shell.client(), place.database, place.collection),
            True: bare_collection(shell.client(self._spy), place.database, place.collection),
        }
        self.brokers: dict[bool, Any] = {
            False: shell.broker(self.collections[False]),
            True: silence(shell.broker(self.collections[True])),
        }

    def same_commands(self, mongoq: Make, driver: Make, *, ordered: bool = True) -> dict[str, Any]:
        """Return whether both ways send the same commands, values aside; print them when they do not."""
        ours, theirs = ([spy.shape(command) for command in self._commands(make(True))] for make in (mongoq, driver))
        if ours == theirs or (not ordered and sorted(ours, key=repr) == sorted(theirs, key=repr)):
            return {"same_commands": True}
        return {"same_commands": False, "commands": {"mongoq": spy.fold(ours), "bare": spy.fold(theirs)}}

    def _commands(self, way: Way) -> list[dict[str, Any]]:
        return spy.sent_commands(self._spy, self._shell.caller, way.call, list(way.prepare(2)))


class _Deaf(Counters):
    """Counts nothing."""

    def add(self, queue: str, event: Event, number: int = 1) -> None:
        """Forget it."""


def silence(broker: Any) -> Any:
    """Turn off the counters of the broker, and return it."""
    broker._context.counters = _Deaf()
    broker._driver._counter_flush = None
    return broker


def queue_name(way: str, *, history: bool) -> str:
    """Name a queue. Queues with history have names of their own, because history is a setting of the queue."""
    return f"{way}.kept" if history else way


def compare(comparison: Comparison, target: float) -> dict[str, Any]:
    """Return the times of each way, and the ratio of mongoq's rate to the driver's."""
    ratio = comparison.rate_ratio()
    return {
        "mongoq": report.latency(comparison.subject),
        "bare": report.latency(comparison.reference),
        "ratio": report.spread(ratio),
        "ratio_of_median_calls": report.spread(comparison.median_ratio()),
        "target": target,
        "reached": ratio.median >= target,
    }


def line(shell: str, name: str, result: dict[str, Any]) -> str:
    """Return a line of the table on the terminal."""
    ratio = result["ratio"]
    return (
        f"{shell:8} {name:26} {ratio['median']:.3f} ± {ratio['error']:.3f} of the bare driver, "
        f"{result['ratio_of_median_calls']['median']:.3f} by medians, "
        f"{result['mongoq']['median_us']:.0f} and {result['bare']['median_us']:.0f} µs"
    )
