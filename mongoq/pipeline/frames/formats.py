"""Frame formats, and the packages that each needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["FORMATS", "frames_of", "kind_name"]

FORMATS = {"pandas": "pandas.DataFrame", "arrow": "pyarrow.Table"}


def kind_name(format: str) -> str:
    """Return the class of frames of this format, as text."""
    return FORMATS[format]


def frames_of(format: str) -> Any:
    """Return the module that makes frames of this format.

    Raises:
        ModuleNotFoundError: the package of the format is not installed; the message names the extra.
    """
    try:
        return import_module(f"mongoq.pipeline.frames.{format}_frames")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mongoq"):
            raise
        needed = FORMATS[format].partition(".")[0]
        hint = f"{format!r} needs {needed}: install mongoq-driver[{format}] (pip install '.[{format}]')"
        raise ModuleNotFoundError(hint, name=error.name) from error
