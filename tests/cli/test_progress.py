"""Progress of commands that search or count: only a terminal shows it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import mongoq


@pytest.mark.prove
def test_only_a_terminal_shows_progress(broker: mongoq.Broker, environment: dict[str, str], tmp_path: Path) -> None:
    broker.queue("orders").push_many(range(120))
    command = [sys.executable, "-m", "mongoq", "export", "orders", "--output", str(tmp_path / "items")]
    place = {**os.environ, **environment}
    terminal, end = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        ended = subprocess.run(
            command, check=False, env=place, stdout=subprocess.PIPE, stderr=end, cwd=tmp_path, timeout=120
        )
        os.close(end)
        drawn = screen.read(10_000).decode()
    assert (ended.returncode, ended.stdout) == (0, b"")
    # The line of progress is erased before the result.
    assert "items" in drawn
    assert drawn.rstrip().rpartition("\r")[2].startswith("exported 120 items")
