"""The fork server: a process that has imported everything, and forks the processes of a campaign.

So a process runs within milliseconds, where a fresh interpreter would take most of a second of the processor. The
server is their parent: it kills them, and learns how they ended. When its owner is gone, so are they.

As a program it takes orders from standard input, and answers each with a line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

__all__ = ["ForkServer"]

ROOT = Path(__file__).parents[2]
LOOK = 0.02
"""Seconds between two looks whether a process has ended."""


class ForkServer:
    """The fork server as its owner sees it; several threads may give orders.

    Attributes:
        log: the file with the errors of the processes: why a process ended that was not killed.
    """

    def __init__(
        self, log: Path, *, roles: str = "tests.crash.roles", environment: Mapping[str, str] | None = None
    ) -> None:
        """Open it, for processes in the ``ROLES`` of a module, with more in their environment than in ours."""
        self.log = log
        self._lock = threading.Lock()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.fork_server", roles],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=ROOT,
                env={**os.environ, **(environment or {}), "PYTHONPATH": str(ROOT)},
                start_new_session=True,  # Ctrl-C is for the owner
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server; the processes that still run are killed."""
        self._process.communicate()

    def start(self, role: str, **arguments: Any) -> int:
        """Start a process, and return its process id."""
        return int(self._answer({"start": role, "arguments": arguments}))

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._answer({"signal": pid, "number": number})

    def kill(self, pid: int) -> None:
        """Kill a process with SIGKILL; it is gone on return.

        Raises:
            AssertionError: it had ended by itself.
        """
        status = self._answer({"kill": pid})
        assert status == -signal.SIGKILL, (
            f"process {pid} ended by itself, with status {status}:\n{self.log.read_text()}"
        )

    def wait(self, pid: int, patience: float) -> int:
        """Wait so many seconds for the end of a process, and return its exit code; a signal is negative."""
        deadline = time.monotonic() + patience
        while (code := self._answer({"look": pid})) is None:
            assert time.monotonic() < deadline, f"process {pid} has no end:\n{self.log.read_text()}"
            time.sleep(LOOK)
        return int(code)

    def _answer(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


def _obey(order: dict[str, Any], roles: Any) -> int | None:
    match order:
        case {"start": role, "arguments": arguments}:
            parent = os.getpid()  # asked for after the fork, the parent may be gone
            return os.fork() or _live(roles.ROLES[role], arguments, parent)
        case {"look": pid}:
            ended, status = os.waitpid(pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if ended else None
        case {"signal": pid, "number": number}:
            os.kill(pid, number)
            return 0
        case {"kill": pid}:
            os.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise AssertionError(order)


def _live(role: Callable[..., None], arguments: dict[str, Any], parent: int) -> NoReturn:
    """Play a role in the process that was forked, until the end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    code = 1
    try:
        role(**arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with(parent: int) -> NoReturn:
    """End this process when the fork server was killed, and so could not do it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _main() -> None:
    alive: set[int] = set()
    roles = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        answer = _obey(order, roles)
        if answer is not None and "start" in order:
            alive.add(answer)
        elif answer is not None:
            alive -= {order.get("kill"), order.get("look")}
        print(json.dumps(answer), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _main()
