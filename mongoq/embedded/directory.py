"""The directory of a server: data, log and keys are all in it, and one owner at a time has it."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from mongoq.errors import EmbeddedServerUnavailable

__all__ = ["Directory"]

# Record locks do not exclude other users in the same process, so the locks of this process are kept here as well. The
# pid is part of the key: a forked child inherits this table, but not the locks.
_held: dict[tuple[int, str], Directory] = {}


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

    def __init__(self, given: Path | None) -> None:
        self.temporary = given is None
        self._lock: int | None = None
        if given is None:
            self.path = Path(tempfile.mkdtemp(prefix="mongoq-")).absolute()
            return
        self.path = given.absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerUnavailable(
                f"the directory {self.path} cannot be made ({error.strerror}); name another path"
            ) from error
        self._key = (os.getpid(), str(self.path.resolve()))
        if _held.setdefault(self._key, self) is not self:
            raise self._in_use(os.getpid())
        try:
            self._acquire()
        except BaseException:
            self.release()
            raise

    @property
    def log(self) -> Path:
        """File for the output of mongod."""
        return self.path / "mongod.log"

    @property
    def key(self) -> Path:
        """File with the key that makes its reader a trusted member, and so an administrator."""
        return self.path / "mongod.key"

    def write_key(self) -> str:
        """Write a new key, which only this user can read, and return it."""
        key = secrets.token_hex(64)
        self.key.unlink(missing_ok=True)
        self.key.touch(mode=0o600)
        self.key.write_text(key, encoding="ascii")
        return key

    def release(self) -> None:
        """Release the directory for other servers, or remove a temporary one. Does nothing the second time."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)  # removed already, unless the watchdog was killed
            return
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if _held.get(self._key) is self:
            del _held[self._key]

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
