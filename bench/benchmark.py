"""The description of a benchmark module, its ``BENCHMARK``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Benchmark"]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One sub-command.

    Attributes:
        summary: one line of help.
        options: adds its options to those that all have (``--uri``, ``--database``, ``--out``).
        run: measures, and returns the result as JSON holds it.
    """

    summary: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], dict[str, Any]]
