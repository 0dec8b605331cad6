"""Packages that the examples need beside mongoq."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["require_rich"]


def require_rich() -> None:
    """End the program with a line that says what to install, if rich is missing."""
    if find_spec("rich") is None:
        sys.exit("rich is not installed: run make setup and .venv/bin/python, or pip install '.[demo]' in the checkout")
