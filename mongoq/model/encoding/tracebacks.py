"""Tracebacks as they are stored with a failure: the place of the error, limited in bytes, without values."""

from __future__ import annotations

import traceback
from types import TracebackType

__all__ = ["shortened"]

FIRST, LAST = 2, 8
"""Frames kept at most: the outermost ones, and the ones nearest to the error."""


def shortened(trace: TracebackType | None, limit: int, *, hidden: str = "") -> str:
    """Return a traceback in at most ``limit`` bytes of UTF-8, a long one without its middle; ``""`` without a trace.

    The outermost frames of files with a path that begins with ``hidden`` are left out: they only call.
    """
    if trace is None:
        return ""
    frames = traceback.extract_tb(trace)
    while hidden and len(frames) > 1 and frames[0].filename.startswith(hidden):
        del frames[0]
    first, last = frames.format()[:FIRST], frames.format()[FIRST:]
    while True:
        left_out = len(frames) - len(first) - len(last)
        told = [*first, *([f"  … {left_out} more\n"] if left_out else []), *last]
        text = "".join(told)
        if len(last) <= LAST and len(text.encode(errors="backslashreplace")) <= limit:
            return text.encode(errors="backslashreplace").decode()
        if last:
            del last[0]
        elif first:
            del first[-1]
        else:
            return ""
