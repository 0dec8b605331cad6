"""What made a frame fail, as its items tell it: a type and a message, without Spark's own text around them."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote, urlsplit

from mongoq.model.envelope import shorten
from mongoq.spark.given import Place

__all__ = ["cause", "named"]

TRACE = "Traceback (most recent call last):"
RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$", re.DOTALL)
END = re.compile(r"\n\s+at [\w.$]+\(|\n\n|\nCaused by:|\nDriver stacktrace")
BYTES = 4096
HIDDEN = "…"


def cause(error: BaseException, place: Place) -> str:
    """Return what failed as JSON, for ``named``: of a task that which was raised in it, and no credentials."""
    kind, message = _raised(str(error)) or (_type_of(error), str(error))
    for secret in _secrets(place):
        message = message.replace(secret, HIDDEN)
    return json.dumps([kind, shorten(message, BYTES)])


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _raised(text: str) -> tuple[str, str] | None:
    """Return type and message of the error that a worker of Spark's shows the trace of, if there is one."""
    _, found, trace = text.rpartition(TRACE)
    if not found:
        return None
    lines = END.split(trace, 1)[0].lstrip("\n").split("\n")
    at = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), None)
    raised = None if at is None else RAISED.match("\n".join(lines[at:]).strip())
    return None if raised is None else (raised[1], raised[2] or "")


def _secrets(place: Place) -> list[str]:
    try:
        password = urlsplit(place.uri).password
    except ValueError:
        password = None
    told = [place.uri, password, None if password is None else unquote(password)]
    return [secret for secret in told if secret]


def named(kind: str, message: str) -> Exception:
    """Return an exception of this type's name, as which the item then tells it."""
    module, _, name = kind.rpartition(".")
    made: type[Exception] = type(name, (Exception,), {"__module__": module or "builtins", "__qualname__": name})
    return made(message)
