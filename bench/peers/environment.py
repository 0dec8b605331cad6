"""Environments for packages that are measured and not depended on: Python ones in a ``venv`` of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

__all__ = ["Environment", "PeerUnavailable"]

INSTALL_SECONDS = 300
VERSIONS = "import json; from importlib.metadata import version as v; print(json.dumps([v(n) for n in {names!r}]))"


class PeerUnavailable(Exception):
    """It cannot be installed here; the message says why."""


class Environment:
    """A package and what it wants, in a folder of its own, installed there at first.

    Attributes:
        python: its interpreter.
    """

    def __init__(self, folder: Path, package: str) -> None:
        self.python = folder / "bin" / "python"
        if not (folder / "installed").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package])
            (folder / "installed").touch()

    def versions(self, *names: str) -> list[str]:
        """Return the versions of packages in it."""
        versions: list[str] = json.loads(_run([str(self.python), "-c", VERSIONS.format(names=names)]))
        return versions


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip())[-300:]
        raise PeerUnavailable(f"{' '.join(command[1:4])} … failed: {message}")
    return done.stdout
