"""A running mongod, seen from its owner: the pipes to the watchdog that runs it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, cast

from mongoq.embedded import watchdog

_END_GRACE_SECONDS = 10.0  # seconds for a clean end of a mongod with data to keep
_WATCHDOG_MARGIN_SECONDS = 5.0  # further seconds for the watchdog, to remove the directory


class Process:
    """A mongod that ends with this process, in any way that this process ends.

    A watchdog in a session of its own is the parent of mongod. If the watchdog is killed, mongod runs on and ``stop``
    ends it directly; it is left behind only when the owner is killed as well.

    Attributes:
        pid: pid of mongod; ``None`` until it runs.
        failure: ``None`` until mongod has ended; then its exit status (minus the signal that ended it), or the error of
            running it.
    """

    def __init__(self, command: list[str], *, directory: Path, log: Path, temporary: bool) -> None:
        self.pid: int | None = None
        self.failure: int | OSError | None = None
        self._owner = os.getpid()
        self._temporary = temporary
        self._pidfd: int | None = None
        self._unread = b""
        self._deaf = False
        self._listening = threading.Lock()
        # Isolated and without site packages: a quick start, independent of the owner's environment.
        script = [sys.executable or "python3", "-I", "-S", watchdog.__file__]
        discard = str(directory) if temporary else ""
        with log.open("ab") as output:
            self._watchdog = subprocess.Popen(
                [*script, str(os.getpid()), str(_END_GRACE_SECONDS), discard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                bufsize=0,
                cwd=directory,
                start_new_session=True,
            )
        self._orders = cast("IO[bytes]", self._watchdog.stdin)
        self._news = cast("IO[bytes]", self._watchdog.stdout)

    @property
    def running(self) -> bool:
        """True while mongod runs, as far as the operating system knows."""
        self.listen(0)
        if self.pid is None or self.failure is not None:
            return False
        return not self._wait_for_end(0)

    def listen(self, seconds: float) -> None:
        """Read the watchdog's messages, waiting for them up to ``seconds``."""
        if os.getpid() != self._owner:
            return  # a forked child would read the messages in place of its parent
        with self._listening:
            if self._deaf:
                time.sleep(seconds)
            elif _readable(self._news.fileno(), seconds):
                news = os.read(self._news.fileno(), 4096)
                self._deaf = not news  # end of file: the watchdog was killed, or never started
                if self._deaf and self.pid is None and self.failure is None:
                    self.failure = ChildProcessError(errno.ECHILD, "no watchdog")
                *lines, self._unread = (self._unread + news).split(b"\n")
                for line in lines:
                    word, _, text = line.decode().partition(" ")
                    value = int(text)
                    if word == "started":
                        self.pid = value
                        # Unlike the pid, a pidfd cannot come to mean another process.
                        with contextlib.suppress(AttributeError, OSError):
                            self._pidfd = os.pidfd_open(value)
                    else:
                        self.failure = OSError(value, os.strerror(value)) if word == "failed" else value

    def stop(self) -> None:
        """End mongod and the watchdog, and wait for both. The watchdog removes a temporary directory. Idempotent."""
        if self._news.closed:
            return
        with contextlib.suppress(OSError):
            self._orders.write(b"q")  # closing is not enough: a forked child has this end open as well
        with contextlib.suppress(OSError):
            self._orders.close()
        try:
            self._watchdog.wait(_END_GRACE_SECONDS + _WATCHDOG_MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        if self.running:
            self._end()
        with self._listening:
            self._deaf = True
            self._news.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _end(self) -> None:
        """End a mongod that has lost its watchdog, which was its parent."""
        if not self._temporary:
            self._signal(signal.SIGTERM)
        if self._temporary or not self._wait_for_end(_END_GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            self._wait_for_end(_END_GRACE_SECONDS)
        self.failure = -signal.SIGKILL

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.pid is not None:
                os.kill(self.pid, number)

    def _wait_for_end(self, seconds: float) -> bool:
        """Return whether mongod has ended, waiting for it up to ``seconds``."""
        if self._pidfd is not None:
            return _readable(self._pidfd, seconds)
        deadline = time.monotonic() + seconds
        while True:
            try:
                os.kill(cast("int", self.pid), 0)
            except ProcessLookupError:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()  # unlike select.select, not limited to the first 1024 descriptors
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
