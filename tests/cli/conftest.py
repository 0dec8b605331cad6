"""Programs of users, and commands that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.programs import APP, Program


@pytest.fixture
def program(tmp_path: Path, uri: str, database: str) -> Iterator[Callable[..., Program]]:
    """Start ``mongoq`` in a folder with an ``app.py``; ``more`` is added to it."""
    started: list[Program] = []

    def start(*arguments: str, more: str = "worker = make(connect())", **environment: Any) -> Program:
        (tmp_path / "app.py").write_text(APP + more)
        place: dict[str, Any] = {"MONGOQ_URI": uri, "MONGOQ_DATABASE": database, **environment}  # and a terminal
        started.append(Program(tmp_path, *arguments, **place))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """File that lets handlers end: ``gate.touch()``."""
    return tmp_path / "gate"
