"""What a client sends, what it costs the server, and faults of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

import mongoq

__all__ = ["Commands", "Killed", "Plan", "explain", "failing", "listened_to"]

Hook = Callable[[str, Mapping[str, Any]], Any]
OF_SESSIONS = {"lsid", "txnNumber", "$clusterTime", "$db", "writeConcern", "readConcern", "autocommit"}


class Killed(BaseException):
    """The end of a process in the middle of a call. No client catches it, nor does it send anything after it."""


class Commands(CommandListener):
    """The commands of a client.

    ``before`` and ``after`` are called with the name and the body of each, in the thread that sends it: before it is
    sent, and when it has succeeded.
    """

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.before: Hook | None = None
        self.after: Hook | None = None
        self._bodies: dict[int, Mapping[str, Any]] = {}

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in ("hello", "endSessions"):
            return
        self.sent.append(dict(event.command))
        self._bodies[event.request_id] = event.command
        if self.before is not None:
            self.before(event.command_name, event.command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        body = self._bodies.pop(event.request_id, None)
        if body is not None and self.after is not None:
            self.after(event.command_name, body)

    def failed(self, event: CommandFailedEvent) -> None:
        self._bodies.pop(event.request_id, None)

    def is_under_way(self, name: str) -> bool:
        """Return whether a command of this name was sent and has not been answered."""
        return any(name in body for body in list(self._bodies.values()))

    @contextmanager
    def killed_before(self, client: MongoClient[Any], number: int) -> Iterator[None]:
        """Let the calls of this thread die before their command of that number, as in a process that is killed.

        Another client ends the transaction that they leave; the server would do so by itself, a minute later.
        """
        caller, left = threading.get_ident(), number

        def die(name: str, body: Mapping[str, Any]) -> None:
            nonlocal left
            if threading.get_ident() == caller:
                left -= 1
                if left <= 0:
                    raise Killed

        self.before = die
        try:
            yield
        finally:
            self.before = None
            client.admin.command("killSessions", [command["lsid"] for command in self.sent if "lsid" in command])

    def names(self) -> list[str]:
        return [next(iter(command)) for command in self.sent]

    def last(self, name: str) -> dict[str, Any]:
        return next(command for command in reversed(self.sent) if next(iter(command)) == name)


@contextmanager
def listened_to(uri: str, database: str, **options: Any) -> Iterator[tuple[mongoq.Broker, Commands]]:
    """A broker with a client of its own, and the commands of that; ``options`` are the client's."""
    commands = Commands()
    with (
        MongoClient[Any](uri, event_listeners=[commands], tz_aware=True, **options) as client,
        mongoq.Broker(client[database]["mongoq"]) as broker,
    ):
        yield broker, commands


@contextmanager
def failing(client: MongoClient[Any], *commands: str, times: int | None = 1, **how: Any) -> Iterator[None]:
    """Let the server fail so many of these commands, or all of them (``None``), until the end of the block."""
    mode: Any = "alwaysOn" if times is None else {"times": times}
    data = {"failCommands": list(commands), **how}
    client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


class Plan:
    """What ``explain`` says: the stages in order, and what was looked at."""

    def __init__(self, answer: Any) -> None:
        stats = answer.get("executionStats") or answer["stages"][0]["$cursor"]["executionStats"]
        self.text = str(answer)
        self.keys = stats["totalKeysExamined"]
        self.documents = stats["totalDocsExamined"]
        self.stages = list(_stages(stats["executionStages"]))


def _stages(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("stage"), str):
            yield node["stage"]
        for part in node.values():
            yield from _stages(part)
    elif isinstance(node, list):
        for part in node:
            yield from _stages(part)


def explain(raw: Any, command: Mapping[str, Any]) -> Plan:
    """Explain a command that was sent to a collection."""
    plain = {name: value for name, value in command.items() if name not in OF_SESSIONS}
    if plain.get("remove"):
        plain.pop("new", None)
    return Plan(raw.database.command("explain", plain, verbosity="executionStats"))
