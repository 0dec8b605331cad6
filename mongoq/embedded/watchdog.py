"""Watchdog between an owner and its mongod: runs mongod, and ends it when the owner asks or is gone.

It runs as a script, by its path, with few imports: it must be light, and must not need the owner's packages. Arguments:
pid of the owner, grace in seconds, directory to remove at the end (or an empty string), and the command line of mongod.
Standard input is a pipe that only the owner writes: a byte or the end of file means stop. A forked child of the owner
holds that end too, so the parent's pid is checked once a second as well. Standard output reports to the owner, one line
each: ``started PID``, ``failed ERRNO`` or ``ended STATUS``. Standard error is the file for the output of mongod.

The owner is a process, not a thread: the parent-death signal of Linux goes by the thread that started a process, and
would end the server of a living owner.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

POLL_SECONDS = 1.0  # seconds between checks of the parent


class Watchdog:
    """One mongod, from start to end. Ctrl-C and the terminal's hang-up do not reach this session."""

    def __init__(self, owner: int, grace: float, discard: str) -> None:
        self.owner = owner
        self.grace = grace
        self.discard = discard
        self.mongod = 0
        self.wake, write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def run(self, command: list[str]) -> None:
        """Start mongod, wait until the owner asks for its end or is gone, and leave nothing behind."""
        if os.getppid() == self.owner:
            self.start(command)
            while self.is_owned():
                self.reap()
        self.end()

    def start(self, command: list[str]) -> None:
        """Run mongod with its output in the log and without the pipes to the owner."""
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
        defaults = [signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD]
        try:
            self.mongod = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsigdef=defaults)
        except OSError as error:
            self.tell(f"failed {error.errno}")
        else:
            self.tell(f"started {self.mongod}")

    def is_owned(self) -> bool:
        """Wait up to a second for an event; returns whether the owner still wants the server."""
        readable, _, _ = select.select([0, self.wake], [], [], POLL_SECONDS)
        if 0 in readable or os.getppid() != self.owner:
            return False
        signals = os.read(self.wake, 512) if self.wake in readable else b""
        return not {signal.SIGTERM, signal.SIGHUP}.intersection(signals)

    def reap(self) -> None:
        """Report to the owner that mongod has ended by itself. Its directory stays: its log has the reason."""
        if self.mongod and (ended := os.waitpid(self.mongod, os.WNOHANG))[0]:
            self.mongod = 0
            self.tell(f"ended {os.waitstatus_to_exitcode(ended[1])}")

    def end(self) -> None:
        """End mongod, cleanly within the grace unless its data is removed anyway; remove a temporary directory."""
        if self.mongod:
            os.kill(self.mongod, signal.SIGKILL if self.discard else signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while self.mongod and time.monotonic() < deadline:
            self.reap()
            if self.mongod and select.select([self.wake], [], [], 0.1)[0]:
                os.read(self.wake, 512)
        if self.mongod:
            os.kill(self.mongod, signal.SIGKILL)
            os.waitpid(self.mongod, 0)
            self.tell(f"ended {-signal.SIGKILL}")
        if self.discard:
            import shutil  # heavy, and needed only once

            shutil.rmtree(self.discard, ignore_errors=True)

    def tell(self, line: str) -> None:
        """Report to the owner, which may be gone."""
        try:
            os.write(1, line.encode() + b"\n")
        except OSError:
            self.owner = -1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Watchdog(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]).run(sys.argv[4:])
