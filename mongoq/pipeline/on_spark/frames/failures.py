"""Failures of a frame: the items that cause one, found by bisection, and the error that each item records."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote, urlsplit

from mongoq.model.encoding.error_text import text_of, type_name
from mongoq.model.envelope import shorten
from mongoq.spark.raw_options import Location

__all__ = ["Bisection", "cause", "make_named_error"]

MOST = 100
"""Runs of the function, at most; the parts that are left then are not split further."""
FRUITLESS = 4
"""Failures beyond the halvings down to one item, after which some part has to have succeeded."""


class Bisection:
    """Chooses the next part of a frame to try, until each item has succeeded, is blamed, or is put off.

    One failing item costs about two runs for each halving of its frame. When a function fails for all items, no part
    succeeds within a few runs more than that, and all items are blamed. When there are too many failing items to find
    each, the rest is put off without blame.

    Args:
        size: number of items; the frame with all of them has failed.
        alike: True if the failure does not depend on the items, so that all of them are blamed.

    Attributes:
        blamed: parts that cause the failure, as far as it is known; grows with each run.
        put_off: parts that have failed, without knowing which of their items is the cause.
    """

    def __init__(self, size: int, *, alike: bool = False) -> None:
        self.blamed: list[range] = []
        self.put_off: list[range] = []
        self._runs = self._passed = self._failed = 0
        self._depth = max(size - 1, 0).bit_length()
        self._parts: list[range] = []
        self._mixed: list[range] = []
        if alike:
            self.blamed.append(range(size))
        else:
            self._split(range(size))

    def next(self) -> range | None:
        """Return the next items to try, by their positions; ``None`` when nothing is left to find out."""
        if self._parts:
            return self._parts[-1]
        (self.put_off if self._passed else self.blamed).extend(self._mixed)
        self._mixed = []
        return None

    def record_success(self) -> None:
        """Record that the last part has succeeded."""
        self._parts.pop()
        self._runs += 1
        self._passed += 1

    def record_failure(self) -> None:
        """Record that the last part has failed."""
        self._runs += 1
        self._failed += 1
        self._split(self._parts.pop())

    def _split(self, part: range) -> None:
        if len(part) <= 1:
            self.blamed += [part] if part else []
        elif self._is_given_up:
            self._mixed.append(part)
        else:
            half = len(part) // 2
            self._parts += [part[half:], part[:half]]

    @property
    def _is_given_up(self) -> bool:
        # Each success allows two more failures: it shows that parts differ, so that a search makes sense.
        return self._runs >= MOST or self._failed > self._depth + FRUITLESS + 2 * self._passed


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
    kind, message = _find_error(text) or (type_name(error), text)
    # The text is Spark's or the user's, and may quote the URI or the password.
    for secret in _secrets(place):
        message = message.replace(secret, HIDDEN)
    return json.dumps([kind, shorten(message, BYTES)])


def _find_error(text: str) -> tuple[str, str] | None:
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


def make_named_error(kind: str, message: str) -> Exception:
    """Return an exception whose type has this name, for the record of the item."""
    module, _, name = kind.rpartition(".")
    made: type[Exception] = type(name, (Exception,), {"__module__": module or "builtins", "__qualname__": name})
    return made(message)
