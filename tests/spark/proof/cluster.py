"""A standalone cluster of Spark on this machine: a master, and workers with a core each, as processes on loopback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

__all__ = ["Cluster"]

PATIENCE = 90.0
HOST = "127.0.0.1"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """Starts them in its ``with`` block, and kills them at its end, with all that they have started.

    Attributes:
        url: of the master.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *, workers: int = 2) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment, "SPARK_NO_DAEMONIZE": "1"}
        self._number = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{HOST}:{_free_port()}"

    def __enter__(self) -> Self:
        try:
            port = self.url.rpartition(":")[2]
            self._start("master", MASTER, "--port", port, "--webui-port", str(_free_port()))
            for number in range(1, self._number + 1):
                work = ["--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / f"work{number}")]
                self._start(f"worker{number}", WORKER, *work, "--webui-port", str(_free_port()), self.url)
            self._wait_for_workers()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        groups = {process.pid for process in self._processes}
        return [pid for pid, group, command in _processes() if group in groups and EXECUTOR in command]

    def kill_executor(self, place: int) -> None:
        """Kill one that is there, or will be soon: the cluster starts another one for each that has died."""
        deadline = time.monotonic() + PATIENCE
        while not (pids := self.executors()):
            assert time.monotonic() < deadline, self._log_text()
            time.sleep(0.1)
        os.kill(pids[place % len(pids)], signal.SIGKILL)

    def _start(self, name: str, what: str, *arguments: str) -> None:
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(script), what, "--host", HOST, *arguments],
                env=self._environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._processes.append(process)

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(re.findall("Registering worker", self._log_text())) < self._number:
            assert time.monotonic() < deadline, self._log_text()
            assert all(process.poll() is None for process in self._processes), self._log_text()
            time.sleep(0.1)

    def _log_text(self) -> str:
        return "".join(log.read_text(errors="replace")[-4000:] for log in sorted(self._folder.glob("*.log")))

    def _end(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def _processes() -> list[tuple[int, int, str]]:
    """Return id, group and command line of all processes."""
    processes: list[tuple[int, int, str]] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                processes.append((int(folder.name), os.getpgid(int(folder.name)), command))
            except OSError:
                pass  # it has ended
    return processes


if sys.platform != "linux":
    raise ImportError("executors are found by /proc")
