"""What the commands of a flow took, so that it can be given back when the flow does not end well."""

from __future__ import annotations

from typing import Any

from mongoq.protocol.flow.commands import Command, Shared

__all__ = ["UndoLog", "log_reply"]

UndoLog = list[tuple[Command[Any] | Shared[Any], Any]]


def log_reply(command: Command[Any], reply: Any, undo_log: UndoLog) -> Any:
    """Return what a flow is told of a reply, and remember what the command took."""
    if command.undo is not None:
        undo_log.append((command, reply))
    return reply if command.parse is None else command.parse(reply)
