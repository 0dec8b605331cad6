"""One mongod in one directory, from the binary to the port it listens on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mongoq.embedded.binary import explain, is_directory_in_use
from mongoq.embedded.directory import Directory
from mongoq.embedded.log import Log
from mongoq.embedded.options import Options
from mongoq.embedded.process import Process
from mongoq.errors import EmbeddedServerUnavailable

__all__ = ["Node"]

# Seconds that a server whose owner was killed may take for its clean end: more than the watchdog's grace.
_PREDECESSOR = 15.0


class Node:
    """A mongod that listens. It belongs to the process that made it.

    Attributes:
        owner: pid of that process.
        port: port on 127.0.0.1; set when mongod listens.
        key: the password of mongod's own administrator, ``__system``, if authentication is on.

    Raises:
        EmbeddedServerUnavailable: the directory is in use, or mongod ended or was not ready by the deadline; then
            nothing is left running.
    """

    def __init__(self, mongod: Path, path: Path | None, options: Options, *, deadline: float) -> None:
        self.owner = os.getpid()
        self.port = 0
        self._mongod = mongod
        self._directory = Directory(path)
        self._process: Process | None = None
        self.key: str | None = None
        try:
            if options.auth is not None:
                self.key = self._directory.write_key()
            self._log = Log(self._directory.log)
            self._start([str(mongod), *options.arguments(self._directory)], deadline)
        except BaseException:
            self.stop()
            raise

    @property
    def path(self) -> Path:
        """Directory of its data and its log."""
        return self._directory.path

    @property
    def temporary(self) -> bool:
        """True if the directory is removed with the server."""
        return self._directory.temporary

    @property
    def pid(self) -> int | None:
        """Pid of mongod, ``None`` when it does not run."""
        return self._process.pid if self._process is not None and self._process.running else None

    def stop(self) -> None:
        """End mongod and its watchdog, wait for both, and release the directory."""
        try:
            if self._process is not None:
                self._process.stop()
        finally:
            self._directory.release()

    def _start(self, command: list[str], deadline: float) -> None:
        patience = min(deadline, time.monotonic() + _PREDECESSOR)
        in_use = ""
        while True:
            process = self._process = Process(
                command, directory=self.path, log=self._directory.log, temporary=self.temporary
            )
            self.port = self._listening_port(process, deadline)
            if self.port:
                return
            held = is_directory_in_use(process.failure, self._log.tail())
            if self.temporary or not held or time.monotonic() >= patience:
                raise EmbeddedServerUnavailable(in_use or self.last_words())
            # This process has the lock, so the mongod that holds the data has lost its owner and is about to end. A
            # temporary directory has no other user, and is removed by the watchdog that has just ended.
            in_use = self.last_words()
            process.stop()
            time.sleep(0.1)

    def _listening_port(self, process: Process, deadline: float) -> int:
        """Return the port, as soon as mongod listens; 0 when it has ended or the deadline is over."""
        while process.failure is None and time.monotonic() < deadline:
            port = self._log.port()
            if port is not None and process.pid is not None:
                return port
            process.listen(0.005)
        return 0

    def last_words(self) -> str:
        """Return a sentence on why mongod is of no use, with the end of its log."""
        if self._process is not None:
            self._process.listen(0)
            if self._process.failure is not None:
                return explain(self._mongod, self._process.failure, self._log.tail())
        return f"{self._mongod} took too long: give it more time (timeout=); its last words: {self._log.tail()}"
