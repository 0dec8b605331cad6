"""The server that an example works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mongoq.embedded import EmbeddedServer

__all__ = ["server"]


@contextmanager
def server(uri: str | None, keep: Path | None = None) -> Iterator[str]:
    """Yield the URI of a server: the given one, or that of a private server, which ends with the block.

    Args:
        uri: of the server to use; "" and ``None`` for a private one.
        keep: where the data of a private one is kept; then ``uri`` makes no difference.
    """
    if uri and keep is None:
        yield uri
        return
    with EmbeddedServer(keep) as private:
        yield private.uri
