"""Addresses of HTTP servers, as options of commands and in URLs."""

from __future__ import annotations

import re
from typing import Any

import click

from mongoq.cli.base.durations import ParameterType

DEFAULT_HOST = "127.0.0.1"


class Address(ParameterType):
    """``HOST:PORT``; without a host, the address of this machine alone."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return host and port."""
        if not isinstance(value, str):
            return value
        host, colon, port = value.rpartition(":")
        if not colon and not value.isdecimal():
            self.fail(f"{value!r} has no port; give HOST:PORT, such as {DEFAULT_HOST}:8080", param, ctx)
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            self.fail(f"{port!r:.60} is no port, a number from 0 to 65535", param, ctx)
        return host.removeprefix("[").removesuffix("]") or DEFAULT_HOST, int(port)


def to_url(host: str, port: int) -> str:
    """Return the URL of a server; the host is the name that the user has given."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
