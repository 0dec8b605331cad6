"""Import paths: ``package.module:name``, where the name may lead on with dots."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mongoq.pipeline.graph.names import in_a_line

__all__ = ["ImportFailed", "imported"]


class ImportFailed(Exception):
    """Nothing could be imported by a path; the message says why."""


def imported(path: Any) -> Any:
    """Return what a path leads to.

    Raises:
        ImportFailed: it leads nowhere, or the module raises something, ``SystemExit`` included.
    """
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not module or not name:
        raise ImportFailed(f"an import path such as 'package.module:function', not {path!r:.150}")
    try:
        found = import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise ImportFailed(f"{path!r:.150} cannot be imported: {reason}; mend that, or the path") from error
    return found
