"""A process of its own that a test can let grow old: what processes do once in hours cannot be waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from types import TracebackType
from typing import Any, Self

__all__ = ["HOUR", "AgingProcess"]

HOUR = 3_601.0
"""Seconds, a little more than an hour."""

PROGRAM = """
import json, sys, threading, time, traceback
from collections import Counter
from datetime import datetime, timedelta

age, monotonic = 0.0, time.monotonic

def aged():  # a monitor of the driver would take an hour without an answer for an outage
    return monotonic() + (0.0 if threading.current_thread().name.startswith("pymongo") else age)

time.monotonic = aged  # before anything else uses it

from pymongo import MongoClient
from pymongo.monitoring import CommandListener
import mongoq
import mongoq.drivers.threads.driver

mongoq.drivers.threads.driver.FLUSH_TIMEOUT_SECONDS = 120.0  # a busy machine may take long to close a broker

sent = Counter()  # names of commands, without those that fetch the rest of a reply

class Listener(CommandListener):
    def started(self, event):
        if event.command_name != "getMore":
            sent[event.command_name] += 1
    def succeeded(self, event): ...
    def failed(self, event): ...

def grow_older(seconds):
    global age
    age += seconds

def open_broker(namespace, now):
    database, _, collection = namespace.partition(".")
    return mongoq.Broker(client[database][collection], clock=mongoq.VirtualClock(datetime.fromisoformat(now)))

client = MongoClient(sys.argv[1], event_listeners=[Listener()], tz_aware=True)
client.admin.command("ping")  # a broker that closes writes nothing before its client knows a server
for line in sys.stdin:
    result = error = None
    try:
        exec(json.loads(line), globals())
    except Exception:
        error = traceback.format_exc()
    print(json.dumps([result, error]), flush=True)
client.close()
"""


class AgingProcess:
    """Runs lines of Python in a process whose monotonic clock goes on by ``grow_older(seconds)``.

    ``open_broker`` opens a broker on a clock that stands still; ``sent`` counts the commands of all of them.
    """

    def __init__(self, uri: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def run(self, code: str, **values: Any) -> Any:
        """Run lines with these variables, and return what they assign to ``result``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assignments = [f"{name} = {_plain(value)!r}" for name, value in values.items()]
        self._process.stdin.write(json.dumps("\n".join([*assignments, code])) + "\n")
        self._process.stdin.flush()
        result, error = json.loads(self._process.stdout.readline())
        assert error is None, error
        return result


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
