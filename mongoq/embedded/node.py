"""One mongod in one directory, from the binary to the port it listens on.

Data, log and keys of a server are all in its directory, and one owner at a time has it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from mongoq.embedded.binary import explain, is_directory_in_use
from mongoq.embedded.process import Process
from mongoq.errors import ArgumentInvalid, EmbeddedServerUnavailable

_LEAST_CACHE_MB = 256  # mongod refuses less
_OPLOG_MB = 512  # the default is 5 % of the free disk, too much for a demo


# Record locks do not exclude other users in the same process, so the locks of this process are kept here as well. The
# pid is part of the key: a forked child inherits this table, but not the locks.
_directories_in_use: dict[tuple[int, str], Directory] = {}


class Directory:
    """A temporary directory of mode 0700, or a given directory that is locked for this process.

    The lock is a record lock: the system releases it when its process ends in any way, and a forked child does not
    inherit it. The lock file ``mongoq.lock`` stays and holds the pid of the last owner.

    Attributes:
        path: absolute path.
        temporary: True if it is removed at the end (by the watchdog, which outlives a killed owner).

    Raises:
        EmbeddedServerUnavailable: another server has the directory, or it cannot be made or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.temporary = path is None
        self._lock: int | None = None
        if path is None:
            self.path = Path(tempfile.mkdtemp(prefix="mongoq-")).absolute()
            return
        self.path = path.absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerUnavailable(
                f"the directory {self.path} cannot be made ({error.strerror}); name another path"
            ) from error
        self._key = (os.getpid(), str(self.path.resolve()))
        if _directories_in_use.setdefault(self._key, self) is not self:
            raise self._in_use(os.getpid())
        try:
            self._acquire()
        except BaseException:
            self.release()
            raise

    @property
    def key(self) -> Path:
        """File with the key that makes its reader a trusted member, and so an administrator."""
        return self.path / "mongod.key"

    def release(self) -> None:
        """Release the directory for other servers, or remove a temporary one. Does nothing the second time."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)  # removed already, unless the watchdog was killed
            return
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if _directories_in_use.get(self._key) is self:
            del _directories_in_use[self._key]

    def _acquire(self) -> None:
        import fcntl  # not available on Windows, where this package must still be importable

        path = self.path / "mongoq.lock"
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise EmbeddedServerUnavailable(
                f"the directory {self.path} cannot be written ({error.strerror}); name another path"
            ) from error
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise self._in_use(os.read(self._lock, 20).decode(errors="replace") or "?") from error
        os.truncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def _in_use(self, pid: int | str) -> EmbeddedServerUnavailable:
        return EmbeddedServerUnavailable(
            f"the directory {self.path} is in use by the embedded server of process {pid}; "
            "stop that one, or take another path"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of ``mongoq.embedded.EmbeddedServer`` that shape the server itself.

    Attributes:
        port: port on 127.0.0.1. With 0 the system chooses when mongod binds, so that no other process can take the port
            first.

    Raises:
        ArgumentInvalid: an option that mongod would refuse.
    """

    replica_set: str | None
    cache_mb: int
    history_window_seconds: int
    parameters: Mapping[str, str | int]
    auth: tuple[str, str] | None = field(repr=False)
    port: int = 0

    def __post_init__(self) -> None:
        if self.replica_set is not None and not self.replica_set:
            raise ArgumentInvalid("replica_set", "a name, or None for a standalone server")
        if self.cache_mb < _LEAST_CACHE_MB:
            raise ArgumentInvalid("cache_mb", f"MongoDB needs {_LEAST_CACHE_MB} or more")
        if self.history_window_seconds < 0:
            raise ArgumentInvalid("history_window_seconds", "cannot be negative")
        if self.auth is not None and not all(self.auth):
            raise ArgumentInvalid("auth", "a user and a password, neither of them empty")

    def arguments(self, directory: Directory) -> list[str]:
        """Return the command line, without the binary. It contains no password."""
        parameters: dict[str, str | int] = {
            "diagnosticDataCollectionEnabled": False,
            "minSnapshotHistoryWindowInSeconds": self.history_window_seconds,
            **self.parameters,
        }
        parameters = {n: str(value).lower() if isinstance(value, bool) else value for n, value in parameters.items()}
        return [
            *("--dbpath", str(directory.path)),
            *("--bind_ip", "127.0.0.1", "--port", str(self.port), "--nounixsocket"),
            *("--networkMessageCompressors", "snappy,zstd"),  # no zlib: CVE-2025-14847
            *("--wiredTigerCacheSizeGB", f"{self.cache_mb / 1024:.3f}"),
            "--quiet",
            *(() if self.replica_set is None else ("--replSet", self.replica_set)),
            *(() if self.replica_set is None else ("--oplogSize", str(_OPLOG_MB))),
            *(() if self.auth is None else ("--keyFile", str(directory.key))),
            *(word for name, value in parameters.items() for word in ("--setParameter", f"{name}={value}")),
        ]

    def uri(self, port: int) -> str:
        """Return the connection string, with the credentials if there are any.

        It names the replica set instead of asking for a direct connection. So a driver waits for a primary, also after
        a step-down, instead of sending commands to the server in any state. Transactions, retryable writes and change
        streams work through it.
        """
        # A standalone server has no set that a driver could discover.
        options = ["directConnection=true"]
        if self.replica_set is not None:
            options = [f"replicaSet={quote_plus(self.replica_set)}"]
        credentials = ""
        if self.auth is not None:
            credentials = ":".join(quote_plus(part) for part in self.auth) + "@"
            options.append("authSource=admin")
        return f"mongodb://{credentials}127.0.0.1:{port}/?{'&'.join(options)}"


_LISTENING = b'"id":23016,'  # "Waiting for connections", in every version since 4.4
_SHOWN_LINES = 4
_SHOWN_LINE_LENGTH = 300


class Log:
    """The log of one mongod; the log of the run before is kept beside it as ``*.1``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        if path.exists():
            path.replace(path.with_name(path.name + ".1"))
        path.touch(mode=0o600)

    def port(self) -> int | None:
        """Return the port that mongod listens on, or ``None`` before; reads on from the end of the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        # mongod may be writing the last line at this moment: an incomplete line is left for the next call.
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            if _LISTENING in line:
                with suppress(ValueError, KeyError, TypeError):  # a line that only looks like the one with the port
                    return int(json.loads(line)["attr"]["port"])
        return None

    def tail(self) -> str:
        """Return the last relevant lines: fatal ones, errors, and lines that are no records; else the last ones."""
        with self.path.open("rb") as file:
            file.seek(max(self.path.stat().st_size - 262_144, 0))
            entries = [_entry(line) for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [text for severe, text in entries if severe] or [text for _, text in entries]
        return " | ".join(text[:_SHOWN_LINE_LENGTH] for text in telling[-_SHOWN_LINES:])


def _entry(line: str) -> tuple[bool, str]:
    """Return whether a line reports a failure, and its text."""
    try:
        record: Any = json.loads(line)
        attributes = record.get("attr")
        details = f" {json.dumps(attributes, ensure_ascii=False)}" if attributes else ""
        return record["s"] in ("F", "E"), record["msg"] + details
    except (ValueError, KeyError, TypeError, AttributeError):
        return True, line.strip()


# Seconds that a server whose owner was killed may take for its clean end: more than the watchdog's grace.
_PREDECESSOR_WAIT_SECONDS = 15.0


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
                self.key = secrets.token_hex(64)
                self._directory.key.unlink(missing_ok=True)
                self._directory.key.touch(mode=0o600)  # only this user can read it
                self._directory.key.write_text(self.key, encoding="ascii")
            self._log = Log(self.path / "mongod.log")
            self._start([str(mongod), *options.arguments(self._directory)], deadline)
        except BaseException:
            self.stop()
            raise

    @property
    def path(self) -> Path:
        """Directory of its data and its log."""
        return self._directory.path

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
        patience = min(deadline, time.monotonic() + _PREDECESSOR_WAIT_SECONDS)
        in_use = ""
        while True:
            process = self._process = Process(
                command, directory=self.path, log=self.path / "mongod.log", temporary=self._directory.temporary
            )
            while process.failure is None and time.monotonic() < deadline:
                port = self._log.port()
                if port is not None and process.pid is not None:
                    self.port = port
                    return
                process.listen(0.005)
            directory_in_use = is_directory_in_use(process.failure, self._log.tail())
            if self._directory.temporary or not directory_in_use or time.monotonic() >= patience:
                raise EmbeddedServerUnavailable(in_use or self.last_words())
            # This process has the lock, so the mongod that holds the data has lost its owner and is about to end. A
            # temporary directory has no other user, and is removed by the watchdog that has just ended.
            in_use = self.last_words()
            process.stop()
            time.sleep(0.1)

    def last_words(self) -> str:
        """Return a sentence on why mongod is of no use, with the end of its log."""
        if self._process is not None:
            self._process.listen(0)
            if self._process.failure is not None:
                return explain(self._mongod, self._process.failure, self._log.tail())
        return f"{self._mongod} took too long: give it more time (timeout=); its last words: {self._log.tail()}"
