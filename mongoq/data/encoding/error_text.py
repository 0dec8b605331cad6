"""Texts of exceptions. They never fail, although the classes and messages are the user's and may raise anything."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

OWN_FOLDER = str(Path(__file__).parents[2]) + os.sep
"""Folder of the files that call handlers: their frames say nothing about an error in a handler.

As it was imported, and not resolved: so do the frames name their files.
"""
MAX_TEXT_LENGTH = 64 * 1024
"""Characters of a text that is logged, or sent from an executor, at most."""
# The descriptors of the classes themselves: a metaclass, or the exception's class, may have others of these names.
_NAME, _QUALNAME, _MODULE = (type.__dict__[name] for name in ("__name__", "__qualname__", "__module__"))
_TRACE = BaseException.__dict__["__traceback__"]
# Patterns for texts of others: each of their characters is looked at a fixed number of times (possessive quantifiers).
_AFTER_SCHEME = re.compile(r"""(?<=://)[^\s"'`<>]++""")
_NAMED_SECRET = re.compile(
    r"""((?:(?:passw(?:or)?d|passphrase|secret|api_?key|access_?key|_token)["']?[ ]{0,2}[:=]|token=)[ ]{0,2}["']?)"""
    r"""[^\s"'&,;)]++""",
    re.IGNORECASE,
)


def name_of(value: object) -> str:
    """Return the name of the type of a value."""
    return _name(_NAME.__get__(type(value)))


def type_name(error: BaseException) -> str:
    """Return the type of an exception with its module, unless that is ``builtins``."""
    kind = type(error)
    name = _name(_QUALNAME.__get__(kind))
    try:
        module = _MODULE.__get__(kind)
    except AttributeError:
        return name
    return name if not isinstance(module, str) or plain(module) == "builtins" else f"{plain(module)}.{name}"


def _name(text: str) -> str:
    return escape_controls(plain(text).replace("\0", "\\0")) or "(no name)"


def text_of(error: BaseException, limit: int = MAX_TEXT_LENGTH) -> str:
    """Return the message of an exception, cut to ``limit`` characters, in a form that UTF-8 can hold."""
    try:
        return plain(str(error), limit)
    except BaseException as failure:
        # ``__str__`` is the user's, and may raise anything.
        return f"(its text cannot be made: {type_name(failure)})"


def hide_credentials(text: str) -> str:
    """Return a text with ``***`` for user and password, or a token, of each URI in it, and for values named so.

    Such names are ``password=``, ``secret:``, ``AWS_SESSION_TOKEN:`` and their like. Takes linear time.
    """
    # Another URI may follow without a space.
    hidden = _AFTER_SCHEME.sub(lambda match: "://".join(map(_hide_user, match[0].split("://"))), text)
    return _NAMED_SECRET.sub(r"\1***", hidden)


def _hide_user(rest: str) -> str:
    place = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, port = rest[:place], rest[:place].rpartition(":")[2]
    # A password that is not escaped may hold a slash: then what seems to be a port is none.
    end = authority.rfind("@") if "@" in authority or ":" not in authority or port.isdigit() else rest.rfind("@")
    return rest if end < 0 else f"***{rest[end:]}"


def spoken(error: BaseException) -> str:
    """Return the name of an exception for a log: type and message, in one line."""
    return one_line(f"{name_of(error)}: {text_of(error)}")


def one_line(text: str) -> str:
    """Return a text in one line: a line break in a text of others could forge a line of the log."""
    return escape_controls(" ".join(text.split()))


def escape_controls(text: str, keep: str = "") -> str:
    """Replace control characters, such as the escape that begins a command of the terminal, by their codes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _code(c) for c in text)


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def trace_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception."""
    return _TRACE.__get__(error)  # type: ignore[no-any-return]


def user_trace_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the first frame on that is not mongoq's; at least the last frame."""
    trace = trace_of(error)
    while trace is not None and trace.tb_next is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
            break
        trace = trace.tb_next
    return trace


def print_exception(error: BaseException) -> str:
    """Return an exception as Python prints it, with its traceback."""
    return "".join(traceback.format_exception(printable(error)))


def printable(error: BaseException) -> BaseException:
    """Return an exception that a log record can carry as ``exc_info``: itself, or a plain one in its place.

    A handler of ``logging`` does not catch all errors that formatting raises, and then the logging caller would fail.
    """
    try:
        text = "".join(traceback.format_exception(error))
        if len(text) <= MAX_TEXT_LENGTH * 2 and text == plain(text, len(text)):
            return error
    except BaseException:  # noqa: S110  # for any failure, the plain exception still describes the error
        pass
    return _Unprintable(f"{type_name(error)}: {text_of(error)}").with_traceback(trace_of(error))


class _Unprintable(Exception):
    """Stands for an exception that cannot be printed."""


def plain(text: Any, limit: int = MAX_TEXT_LENGTH) -> str:
    """Return a text, cut to ``limit`` characters, as a plain ``str`` that UTF-8 can hold."""
    # The methods of a subclass are the user's, so call that of ``str`` itself.
    exact = str.__str__(text)
    return exact[:limit].encode(errors="backslashreplace").decode()


FIRST, LAST = 2, 8
"""Frames kept at most: the outermost ones, and the ones nearest to the error."""


def shorten_trace(trace: TracebackType | None, limit: int) -> str:
    """Return a traceback in at most ``limit`` bytes of UTF-8, a long one without its middle; ``""`` without a trace."""
    if trace is None:
        return ""
    frames = traceback.extract_tb(trace)
    first, last = frames.format()[:FIRST], frames.format()[FIRST:]
    while True:
        left_out = len(frames) - len(first) - len(last)
        lines = [*first, *([f"  … {left_out} more\n"] if left_out else []), *last]
        text = "".join(lines)
        if len(last) <= LAST and len(text.encode(errors="backslashreplace")) <= limit:
            return text.encode(errors="backslashreplace").decode()
        if last:
            del last[0]
        elif first:
            del first[-1]
        else:
            return ""
