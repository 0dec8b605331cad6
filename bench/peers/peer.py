"""The queues that are compared with mongoq: how each is driven and started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.keuss import VERSION, Keuss
from bench.peers.environment import Environment

__all__ = ["CONCERN", "PEERS", "Peer", "Start"]

HERE = Path(__file__).parent
CALLERS = 64
"""Callers of Keuss at once, which is faster than few."""
CONCERN = "majority, by the URI"
EARLY = (
    "acknowledged before it is written: push and ok call back with setImmediate as soon as the item is in the bucket "
    "in memory (backends/bucket-mongo-safe.js: insert, line 596, and commit_element, line 422); timers write buckets, "
    "every 500 ms (_set_periodic_flush, _ensure_flush_state_changes). A process that dies in between loses what was "
    "pushed, and runs again what was committed."
)


@dataclass(frozen=True, slots=True)
class Start:
    """The command that starts a process to empty the peer's queue.

    Attributes:
        command: takes the URI and the number of items.
        folder: where it runs.
        version: of the peer and what it runs on.
    """

    command: Callable[[str, int], list[str]]
    folder: Path
    version: str


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them.

    Attributes:
        name: what it is called in the result.
        driven: how its queue is emptied.
        install: given a folder, installs it there unless it was; raises what says why it cannot.
        times: how many items it is given, beside what is asked for: as many as take it a while.
        note: what is to be known of its figure.
    """

    name: str
    driven: str
    install: Callable[[Path], Start]
    times: float = 1.0
    note: str | None = None


def _keuss(backend: str, folder: Path) -> Start:
    Keuss(folder / "keuss")

    def command(uri: str, items: int) -> list[str]:
        return ["node", str(HERE / "keuss.js"), uri, backend, str(items), str(CALLERS)]

    return Start(command, folder / "keuss", f"keuss {VERSION}")


def _python(package: str, script: str, folder: Path) -> Start:
    name = package.partition("[")[0]
    environment = Environment(folder / name, package)
    version, pymongo = environment.versions(name, "pymongo")

    def command(uri: str, items: int) -> list[str]:
        return [str(environment.python), str(HERE / script), uri, str(items)]

    return Start(command, folder / name, f"{name} {version}, pymongo {pymongo}")


_KEUSS_LOOP = f"pop with reserve, then ok, {CALLERS} callers at once; signals and statistics kept within the process"

PEERS = (
    Peer("Keuss mongo", _KEUSS_LOOP, partial(_keuss, "mongo")),
    Peer("Keuss pl-mongo", _KEUSS_LOOP, partial(_keuss, "pl-mongo")),
    Peer("Keuss ps-mongo", _KEUSS_LOOP, partial(_keuss, "ps-mongo"), note="keeps what is processed"),
    Peer("Keuss bucket-mongo-safe", _KEUSS_LOOP, partial(_keuss, "bucket-mongo-safe"), times=10, note=EARLY),
    Peer(
        "kombu mongodb",
        "a Consumer that acknowledges each message, drain_events in a loop, one process",
        partial(_python, "kombu[mongodb]", "kombu_consumer.py"),
        note="find_one_and_delete on delivery: a message that was not acknowledged is gone when its process is killed",
    ),
    Peer(
        "mongo-taskqueue",
        "next, then on_success, one caller, with its indexes and a visibility_timeout",
        partial(_python, "mongo-taskqueue", "taskqueue_consumer.py"),
        times=0.2,
        note="keeps what is processed",
    ),
)
