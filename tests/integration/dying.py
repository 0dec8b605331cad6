"""Queries of Spark that die on their way: ``dying.py URI DATABASE COLLECTION:COMMAND...``.

For each collection a process of its own claims a batch of the queue ``orders``, and settles it. It is killed before the
command of that number is sent, and nothing is undone.
"""

from __future__ import annotations

import os
import signal
import sys

from pymongo import monitoring
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.integration.query import Query


class Death(CommandListener):
    """Kills this process before a command is sent."""

    def __init__(self) -> None:
        self.left = sys.maxsize

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name not in ("hello", "endSessions"):
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


def die(uri: str, database: str, collection: str, command: int) -> None:
    death = Death()
    monitoring.register(death)
    query = Query(uri, database, collection=collection)
    death.left = command
    query.claim()
    query.settle()


def main(uri: str, database: str, *deaths: str) -> None:
    children = []
    for each in deaths:
        collection, _, command = each.partition(":")
        if not (child := os.fork()):
            try:
                die(uri, database, collection, int(command))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), "it has come to its end"


if __name__ == "__main__":
    main(*sys.argv[1:])
