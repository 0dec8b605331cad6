# Generated from mongoq/drivers/aio/sender.py by scripts/unasync.py. Do not edit.
"""Sender: sends a command in the way that suits it, and undoes the command of a failed call."""

from __future__ import annotations

import logging
from typing import Any

from mongoq.drivers import raw_commands
from mongoq.drivers.backend import Backend, classify_error
from mongoq.protocol.flow import SENDS, Command, ReplyLost, Shared

__all__ = ["ThreadSender"]

logger = logging.getLogger("mongoq.drive")


class ThreadSender:
    """Sends commands to a backend, raw or by the driver's method."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def send(self, command: Command[Any]) -> Any:
        """Send a command and return its reply, not parsed."""
        if self._backend.is_raw_command(command):
            return raw_commands.parse_reply(command, self._backend.call_raw(command))
        reply = self._backend.call(command)
        if command.method in ("find", "aggregate"):
            return list(reply)
        return reply

    def undo(self, command: Command[Any] | Shared[Any], reply: Any) -> None:
        """Give back the items that a command took for a failed call; the fence makes a resend safe."""
        back = command.undo(reply) if command.undo is not None else None
        for sends in range(SENDS if back is not None else 0):
            try:
                self.send(back)  # type: ignore[arg-type]  # it is one
            except Exception as error:
                if isinstance(classify_error(error), ReplyLost) and sends < SENDS - 1:
                    continue
                logger.warning("an item that a failed call had taken could not be given back: %r", error)
            return
