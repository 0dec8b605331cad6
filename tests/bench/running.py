"""A benchmark as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["ran"]

ROOT = Path(__file__).parents[2]


def ran(out: Path, name: str, *options: str) -> dict[str, Any]:
    """Run a benchmark on a private server, and return the result that it writes into a file."""
    run = subprocess.run(
        [sys.executable, "-m", "bench", name, *options, "--out", str(out)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    loaded: dict[str, Any] = json.loads(out.read_text())
    assert loaded["benchmark"] == name
    return loaded
