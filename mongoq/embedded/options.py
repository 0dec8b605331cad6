"""Options of a mongod, and its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote_plus

from mongoq.embedded.directory import Directory
from mongoq.errors import ArgumentInvalid

__all__ = ["Options"]

_LEAST_CACHE_MB = 256  # mongod refuses less
_OPLOG_MB = 512  # the default is 5 % of the free disk, too much for a demo


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
        return [
            *("--dbpath", str(directory.path)),
            *("--bind_ip", "127.0.0.1", "--port", str(self.port), "--nounixsocket"),
            *("--networkMessageCompressors", "snappy,zstd"),  # no zlib: CVE-2025-14847
            *("--wiredTigerCacheSizeGB", f"{self.cache_mb / 1024:.3f}"),
            "--quiet",
            *(() if self.replica_set is None else ("--replSet", self.replica_set)),
            *(() if self.replica_set is None else ("--oplogSize", str(_OPLOG_MB))),
            *(() if self.auth is None else ("--keyFile", str(directory.key))),
            *(word for name, value in self._parameters() for word in ("--setParameter", f"{name}={value}")),
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

    def _parameters(self) -> list[tuple[str, str]]:
        parameters: dict[str, str | int] = {
            "diagnosticDataCollectionEnabled": False,
            "minSnapshotHistoryWindowInSeconds": self.history_window_seconds,
            **self.parameters,
        }
        return [
            (name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in parameters.items()
        ]
