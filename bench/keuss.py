"""Keuss, a queue on MongoDB for Node.js: the peer of mongoq's group commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.operations import payload

__all__ = ["VERSION", "Keuss", "KeussUnavailable"]

VERSION = "2.0.6"
SCRIPT = Path(__file__).with_name("keuss.js")
INSTALL_SECONDS = 300


class KeussUnavailable(Exception):
    """Node.js or npm is missing, or the package cannot be installed."""


class Keuss:
    """The package in a folder of its own, installed there at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not (folder / "node_modules" / "keuss").is_dir():
            self._install()

    def _install(self) -> None:
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise KeussUnavailable("node and npm are needed to measure beside Keuss; install them, or leave Keuss out")
        self._folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self._folder), f"keuss@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode:
            raise KeussUnavailable(f"npm could not install keuss@{VERSION}: {done.stderr.strip()[-300:]}")

    def rate(self, uri: str, what: str, *, callers: int, seconds: float, items: int) -> float:
        """Return how many items a second went through; ``items`` are pushed before they are reserved."""
        command = ["node", str(SCRIPT), uri, what, str(callers), str(seconds)]
        environment = {**os.environ, "PAYLOAD": json.dumps(payload()), "ITEMS": str(items)}
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise RuntimeError(f"keuss failed: {done.stderr.strip()[-300:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return float(result["items"] / result["seconds"])
