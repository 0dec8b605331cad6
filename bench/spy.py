"""Listening to commands: whether both ways send the same, and how the server plans them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from bench.measure import Caller

__all__ = ["Spy", "fold", "plan", "sent_commands", "shape"]

SESSION = frozenset({"lsid", "txnNumber", "$clusterTime", "$db", "$readPreference"})
"""What the driver adds to every command by itself."""


DEFAULTS = frozenset({("upsert", False), ("new", False)})
"""What the driver spells out in some commands, though the server takes it for granted."""


class Spy(CommandListener):
    """Records the commands that a client sends."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        command = {name: value for name, value in event.command.items() if name not in SESSION}
        self.commands.append(command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


def sent_commands(spy: Spy, caller: Caller, call: Callable[[Any], Any], subjects: list[Any]) -> list[dict[str, Any]]:
    """Return the commands of the last of some calls; the earlier calls may check, create indexes and read the clock."""
    caller.block(call, subjects[:-1])
    spy.commands.clear()
    caller.block(call, subjects[-1:])
    return list(spy.commands)


def shape(value: Any) -> Any:
    """Return the parts in which two commands must agree: names, numbers, flags, and the types of other values."""
    if isinstance(value, Mapping):
        return {name: shape(part) for name, part in value.items() if part is not False or (name, part) not in DEFAULTS}
    if isinstance(value, list | tuple):
        return [shape(part) for part in value]
    return value if isinstance(value, bool | int | float | None) else type(value).__name__


def fold(shape: Any) -> Any:
    """Return a readable shape: repeated elements of a list are shown once, with their number."""
    if isinstance(shape, dict):
        return {name: fold(part) for name, part in shape.items()}
    if isinstance(shape, list):
        runs = [(fold(part), len(list(equal))) for part, equal in groupby(shape)]
        return [part if times == 1 else {"times": times, "each": part} for part, times in runs]
    return shape


def plan(client: MongoClient[Any], database: str, command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's ``explain`` of a command with execution figures; it changes nothing."""
    asked = {name: value for name, value in command.items() if name != "writeConcern"}
    reply = client[database].command({"explain": asked, "verbosity": "executionStats"})
    figures = reply["executionStats"]
    return {
        "keys_examined": figures["totalKeysExamined"],
        "documents_examined": figures["totalDocsExamined"],
        "stages": "/".join(_stages(figures["executionStages"])),
    }


def _stages(stage: Mapping[str, Any]) -> Iterator[str]:
    yield stage["stage"]
    below = [stage["inputStage"]] if "inputStage" in stage else stage.get("inputStages", [])
    for part in below:
        yield from _stages(part)
