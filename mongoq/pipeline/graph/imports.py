"""Import paths: ``package.module:name``, where the name may have further parts after dots."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mongoq.pipeline.graph.names import in_a_line

__all__ = ["ImportFailed", "imported"]


class ImportFailed(Exception):
    """The path cannot be imported; the message has the reason."""


def imported(path: Any) -> Any:
    """Return the object that a path names.

    Raises:
        ImportFailed: the path names nothing, or the module raises an error (also ``SystemExit``).
    """
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not module or not name:
        raise ImportFailed(f"an import path such as 'package.module:function', not {path!r:.150}")
    try:
        found = import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    # An imported module may raise anything, also SystemExit, but Ctrl-C of the user has to end the program.
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise ImportFailed(f"{path!r:.150} cannot be imported: {reason}; mend that, or the path") from error
    return found
