"""The kinds of frames that there are, and what has to be installed for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["FORMATS", "frames_of", "kind_name"]

FORMATS = {"pandas": "pandas.DataFrame", "arrow": "pyarrow.Table"}


def kind_name(format: str) -> str:
    """Return what a function is given in this format."""
    return FORMATS[format]


def frames_of(format: str) -> Any:
    """Return the module that makes frames of this format.

    Raises:
        ModuleNotFoundError: what it needs is not installed; its text names the extra.
    """
    try:
        return import_module(f"mongoq.pipeline.frames.{format}_frames")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mongoq"):
            raise
        needed = FORMATS[format].partition(".")[0]
        hint = f"{format!r} needs {needed}: install mongoq-driver[{format}] (pip install '.[{format}]')"
        raise ModuleNotFoundError(hint, name=error.name) from error
