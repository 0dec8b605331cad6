"""Addresses that browsers see: origins, from whose pages changes are accepted, and the prefix of the paths."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

from mongoq.errors import ArgumentInvalid

DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE = "https://queues.example.com"
ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
"""Prefix of addresses: segments that need no encoding, and none that a browser resolves."""


def check_origins(origins: Collection[str]) -> frozenset[str]:
    """Return origins as browsers send them: in small letters, and without a port that the scheme stands for.

    Raises:
        ArgumentInvalid: one of them is no origin.
    """
    if isinstance(origins, str):
        raise ArgumentInvalid("origins", f"give a list of them, such as [{EXAMPLE!r}]")
    return frozenset(map(_read_origin, origins))


def _read_origin(text: Any) -> str:
    problem = f"an origin is scheme and host, such as {EXAMPLE}, not {text!r:.120}"
    if not isinstance(text, str) or not text.isascii():  # a browser sends a name in Punycode
        raise ArgumentInvalid("origins", problem)
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise ArgumentInvalid("origins", problem) from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc or "*" in parts.netloc:
        raise ArgumentInvalid("origins", problem)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ArgumentInvalid("origins", problem)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}")


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
