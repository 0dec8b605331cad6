"""Addresses that browsers see: origins, from whose pages changes are accepted, and the prefix of the paths."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from mongoq.errors import ArgumentInvalid

DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE = "https://queues.example.com"
MAX_PORT = 65_535
ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9_.-]+|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5})?)?/?", re.ASCII)
"""An origin in small letters; a browser sends a name in Punycode."""
ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
"""Prefix of addresses: segments that need no encoding, and none that a browser resolves."""


def check_origins(origins: Collection[str]) -> frozenset[str]:
    """Return origins as browsers send them: in small letters, and without a port that the scheme stands for.

    Raises:
        ArgumentInvalid: one of them is no origin.
    """
    if isinstance(origins, str):
        raise ArgumentInvalid("origins", f"give a list of them, such as [{EXAMPLE!r}]")
    checked = set()
    text: Any
    for text in origins:
        found = ORIGIN.fullmatch(text.strip().lower()) if isinstance(text, str) and text.isascii() else None
        if found is None or int(found["port"] or 0) > MAX_PORT:
            raise ArgumentInvalid("origins", f"an origin is scheme and host, such as {EXAMPLE}, not {text!r:.120}")
        scheme, port = found["scheme"], int(found["port"] or 0)
        checked.add(f"{scheme}://{found['host']}" + ("" if port in (0, DEFAULT_PORTS[scheme]) else f":{port}"))
    return frozenset(checked)


def check_root_path(root_path: Any, paths: Iterable[str]) -> str:
    """Return the prefix that a proxy adds to the paths of an app, without a slash at its end.

    Raises:
        ArgumentInvalid: it is no prefix of paths, or an app with these paths has one that begins so: for a proxy that
            removes the prefix, both would be the same.
    """
    if not isinstance(root_path, str):
        raise ArgumentInvalid("root_path", f"a path such as /queues, not {root_path!r:.60}")
    prefix = root_path.rstrip("/")
    if not prefix:
        return ""
    if not ROOT_PATH.fullmatch(prefix):
        raise ArgumentInvalid(
            "root_path", f"a path such as /queues, of letters, digits and -._~, not {root_path!r:.60}"
        )
    if any(f"{path}/".startswith(f"{prefix}/") for path in paths):
        raise ArgumentInvalid("root_path", f"{prefix} is a path of the app itself; choose another one")
    return prefix
