"""Undo log of a flow: commands that took items, with their replies, to give the items back if the flow fails."""

from __future__ import annotations

from typing import Any

from mongoq.protocol.flow.commands import Command, Shared

__all__ = ["UndoLog", "log_reply"]

UndoLog = list[tuple[Command[Any] | Shared[Any], Any]]


def log_reply(command: Command[Any], reply: Any, undo_log: UndoLog) -> Any:
    """Log a command that has an undo, and return its parsed reply for the flow."""
    if command.undo is not None:
        undo_log.append((command, reply))
    return reply if command.parse is None else command.parse(reply)
