"""Failures of a frame as its items record them: a type and a message, without Spark's own text around them."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote, urlsplit

from mongoq.model.encoding.error_text import text_of, type_name
from mongoq.model.envelope import shorten
from mongoq.spark.raw_options import Location

__all__ = ["cause", "named"]

TRACE = "Traceback (most recent call last):"
RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$", re.DOTALL)
END = re.compile(r"\n\s+at [\w.$]+\(|\n\n|\nCaused by:|\nDriver stacktrace")
BYTES = 4096
LONGEST = 4 * 1024 * 1024
"""Characters of Spark's error text that are searched for the error of a task."""
HIDDEN = "…"


def cause(error: BaseException, place: Location) -> str:
    """Return the cause of a failure as JSON, for ``named``: the error raised in a task if any, without credentials."""
    text = text_of(error, LONGEST)
    kind, message = _raised(text) or (type_name(error), text)
    # The text is Spark's or the user's, and may quote the URI or the password.
    for secret in _secrets(place):
        message = message.replace(secret, HIDDEN)
    return json.dumps([kind, shorten(message, BYTES)])


def _raised(text: str) -> tuple[str, str] | None:
    """Return type and message of the error in the last Python traceback of Spark's text; ``None`` without one."""
    _, found, trace = text.rpartition(TRACE)
    if not found:
        return None
    lines = END.split(trace, 1)[0].lstrip("\n").split("\n")
    at = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), None)
    raised = None if at is None else RAISED.match("\n".join(lines[at:]).strip())
    return None if raised is None else (raised[1], raised[2] or "")


def _secrets(place: Location) -> list[str]:
    try:
        password = urlsplit(place.uri).password
    except ValueError:
        password = None
    told = [place.uri, password, None if password is None else unquote(password)]
    return [secret for secret in told if secret]


def named(kind: str, message: str) -> Exception:
    """Return an exception whose type has this name, for the record of the item."""
    module, _, name = kind.rpartition(".")
    made: type[Exception] = type(name, (Exception,), {"__module__": module or "builtins", "__qualname__": name})
    return made(message)
