"""Processes of the shop, started as they are deployed, and what they print and answer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import PATIENCE, until

__all__ = ["APP", "MONGOQ", "UVICORN", "WORKER", "ShopProcess"]

ROOT = Path(__file__).parents[2]
MONGOQ = [sys.executable, "-m", "mongoq"]
APP = [sys.executable, "-m", "examples.shop"]
UVICORN = [sys.executable, "-m", "uvicorn", "--factory", "examples.shop.app:create_app", "--port", "0"]
WORKER = [*MONGOQ, "worker", "examples.shop.worker:worker", "--http", "127.0.0.1:0"]
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)")


class ShopProcess:
    """A process of the shop that serves HTTP.

    Attributes:
        log: lines that it has printed.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MONGOQ_", "SHOP_"))}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, "SHOP_PORT": "0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))

    @property
    def url(self) -> str:
        """Address that the process has printed, as soon as it has."""
        found = until(lambda: self._find_address() or self.process.poll() is not None)
        assert isinstance(found, str), self.log
        return found

    def _find_address(self) -> str | None:
        return next((match[1] for line in list(self.log) if (match := ADDRESS.search(line))), None)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE)

    def status(self, path: str) -> int:
        """Return the status of a path; 0 if the port is closed."""
        try:
            return self.get(path).status_code
        except httpx.TransportError:
            return 0

    def place(self, number: int = 1) -> list[str]:
        """Place orders; returns their ids."""
        answers = [
            httpx.post(f"{self.url}/orders", json={"customer": "Ada", "quantity": 1}, timeout=PATIENCE)
            for _ in range(number)
        ]
        assert [answer.status_code for answer in answers] == [201] * number, answers[0].text
        return [answer.json()["id"] for answer in answers]

    def wait_until_ready(self) -> None:
        until(lambda: self.status("/readyz") == 200 or self.process.poll() is not None)
        assert self.process.poll() is None, self.log

    def wait_until_answered(self, *paths: str) -> None:
        """Wait until each path is answered with 200; a check of the server may take too long on a busy machine."""
        for path in paths:
            until(lambda path=path: self.status(path) == 200)  # type: ignore[misc]

    def wait_until_stopping(self) -> None:
        """Wait until the process has heard a signal, and says that it stops."""

        def is_stopping() -> bool:
            answer = self.get("/readyz")
            return answer.status_code == 503 and any("stops" in reason for reason in answer.json()["reasons"])

        until(is_stopping)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def answer(self, path: str) -> Any:
        return self.get(path).json()
