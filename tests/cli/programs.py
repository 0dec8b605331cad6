"""Commands in processes of their own, in the folder of a program that a test has written."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import termios
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]

APP = """
import os, time
import mongoq

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def handle(payload):
    say("begin", payload, os.getpid())
    while not os.path.exists("gate"):
        time.sleep(0.005)
    say("end", payload)

def connect():
    return mongoq.connect(os.environ["MONGOQ_URI"], database=os.environ["MONGOQ_DATABASE"])

def make(broker: mongoq.Broker):
    worker = mongoq.Worker(broker, grace=60)
    worker.consumer("orders", lease=1, concurrency=2, prefetch=0)(handle)
    return worker
"""
"""Program whose handlers end when there is a file ``gate``."""


class Printed:
    """What a command has printed.

    Attributes:
        lines: lines of handlers.
        log: lines of the log.
    """

    lines: list[str]
    log: list[str]

    def said(self, word: str) -> list[str]:
        """What the handlers have said after a word."""
        return [line.partition(" ")[2] for line in list(self.lines) if line.split(" ")[0] == word]

    def logged(self, text: str) -> list[str]:
        """Lines of the log that hold a text."""
        return [line for line in list(self.log) if text in line]


@dataclass
class Ended(Printed):
    """A command that has ended."""

    lines: list[str]
    log: list[str]
    code: int

    def end(self) -> int:
        """Return its exit code."""
        return self.code


class Program(Printed):
    """``mongoq`` in a process of its own, and what it and its children have printed."""

    def __init__(self, folder: Path, *arguments: str, terminal: int | None = None, **environment: str) -> None:
        command = [sys.executable, "-m", "mongoq", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            **({} if terminal is None else {"stdin": terminal, "preexec_fn": partial(_own_terminal, terminal)}),
        )
        self.pid = self.process.pid
        self.lines: list[str] = []
        self.log: list[str] = []
        self._seen: set[psutil.Process] = set()
        self._readers = [
            threading.Thread(target=_read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.log))
        ]
        for reader in self._readers:
            reader.start()

    def workers(self) -> list[int]:
        """Process ids of the children that live."""
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        self._seen.update(children)
        return [child.pid for child in children if is_alive(child.pid)]

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """Kill it and its children, by their ids."""
        self.workers()
        self.process.kill()
        self.process.wait()
        for child in self._seen:
            if child.is_running():  # compares the time of its start as well
                child.kill()
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _own_terminal(terminal: int) -> None:
    """Make it the terminal of a new session, whose foreground processes a Ctrl-C reaches."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _read(stream: IO[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line.rstrip("\n"))


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def begun(program: Program, number: int) -> list[str]:
    """Wait until so many runs have begun, and return what they said: payload and process."""
    until(lambda: len(program.said("begin")) >= number or program.process.poll() is not None)
    assert program.process.poll() is None, program.log
    return program.said("begin")


def fields_of(line: str) -> dict[str, Any]:
    """One line of a log in JSON."""
    fields: dict[str, Any] = json.loads(line)
    return fields
