"""Rendering: templates with values of users as text, never as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mongoq import __version__
from mongoq.model.encoding.extended_json import json_text, time_text
from mongoq.protocol.history.pages import BoundedCount
from mongoq.web.guard import grant_of

SHORT_CHARACTERS = 160
"""Characters of a payload in a list, at most."""
LONG_CHARACTERS = 100_000
"""Characters of a payload on the page of its item, at most; the API has all of it."""
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
"""Units of durations, with their seconds."""


def show_count(value: BoundedCount | int) -> str:
    """Return a number of items; "more than N" where the count ended at its limit."""
    if isinstance(value, int):
        return f"{value:,}"
    if value.exact:
        return f"{value.number:,}"
    return f"more than {value.number - 1:,}" if value.number else "not counted"


def show_duration(value: timedelta | float | None) -> str:
    """Return a duration in its two largest units."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return "now"
    parts: list[str] = []
    for name, size in UNITS:
        number, seconds = divmod(seconds, size)
        if number or parts:
            parts.append(f"{number:.0f} {name}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "now"


def show_short(value: Any) -> str:
    """Return a value as one line of JSON, shortened."""
    text = json_text(value)
    return text if len(text) <= SHORT_CHARACTERS else f"{text[: SHORT_CHARACTERS - 1]}…"


def show_long(value: Any) -> str:
    """Return a value as JSON in lines; the end of a very long one is left out."""
    text = json_text(value, indent=2)
    return text if len(text) <= LONG_CHARACTERS else f"{text[:LONG_CHARACTERS]}… (the API has all of it)"


def make_environment() -> Environment:
    """Return the environment of the templates: everything is escaped, and an unknown name is an error."""
    environment = Environment(
        loader=PackageLoader("mongoq.web.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"count": show_count, "duration": show_duration, "short": show_short, "long": show_long}
    environment.filters.update({**filters, "time": lambda at: "" if at is None else _show_time(at)})
    return environment


def _show_time(at: Any) -> str:
    return time_text(at, "seconds") if isinstance(at, datetime) else str(at)


class Renderer:
    """Fills templates for a request."""

    def __init__(self) -> None:
        self._environment = make_environment()

    def page(self, request: Request, name: str, status: int = 200, /, **values: Any) -> HTMLResponse:
        """Return the page of a template."""
        root = request.scope.get("root_path", "").rstrip("/")

        def link(path: str, **parameters: Any) -> str:
            """Return the address of a page below the place where the app is mounted."""
            used = {name: value for name, value in parameters.items() if value not in (None, "")}
            return f"{root}{path}" + (f"?{urlencode(used, doseq=True)}" if used else "")

        grant = request.scope.get("mongoq.grant")
        common: Mapping[str, Any] = {
            "link": link,
            "may_act": grant is not None and grant_of(request.scope).level == "act",
            "user": "" if grant is None else grant.user,
            "path": request.url.path.removeprefix(root),
            "version": __version__,
        }
        text = self._environment.get_template(f"{name}.html").render({**common, **values})
        # A lone surrogate, which another program may have stored, has no UTF-8.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)

    def message(
        self,
        request: Request,
        title: str,
        text: str,
        status: int = 200,
        *,
        nearest: Sequence[str] = (),
        is_temporary: bool = False,
    ) -> HTMLResponse:
        """Return a page that says something; ``nearest`` are queues that the reader may have meant."""
        values = {"title": title, "text": text, "nearest": nearest, "is_temporary": is_temporary}
        return self.page(request, "message", status, **values)
