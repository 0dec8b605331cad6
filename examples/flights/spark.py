"""A shared Spark session: silent, reachable on loopback only, and gone with its JVM after the block."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import mongoq
import mongoq.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SharedSession", "SparkFailed", "shared_session", "what_is_missing"]

STOPPING = 60.0
"""Seconds that Spark is given to end."""


class SparkFailed(Exception):
    """Spark could not be started, or a query failed; the text holds the end of its log."""


def what_is_missing() -> str | None:
    """Return a line that says what to install for Spark, or ``None`` when all is there."""
    try:
        mongoq.spark.check()
    except mongoq.spark.SparkUnavailable as unavailable:
        return str(unavailable)
    return None


class SharedSession:
    """One session, started when it is first asked for, which takes ten seconds or so; made by ``shared_session``."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._log = folder / "spark.log"
        self._stack = stack
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            with _stderr_into(self._log), _hold_interrupts():
                self._session = _start(self._folder)
                self._stack.callback(_stop, self._session, self._log)
            self._session.sparkContext.setLogLevel("ERROR")
            mongoq.spark.register(self._session)
        return self._session

    @contextmanager
    def asked(self) -> Iterator[SparkSession]:
        """Give the session to the queries of a block.

        Raises:
            SparkFailed: it could not be started, or a query failed.
            KeyboardInterrupt: the same, since it was interrupted.
        """
        try:
            yield self.session()
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from error
            log = self._log.read_text(errors="replace") if self._log.exists() else ""
            raise SparkFailed(_in_short(str(error), log)) from error


@contextmanager
def shared_session() -> Iterator[SharedSession]:
    """Yield a session that starts on first use; Spark, if it was started, has ended after the block."""
    with TemporaryDirectory(prefix="flights-spark-") as folder, ExitStack() as stack:
        yield SharedSession(Path(folder), stack)


def _was_interrupted(error: BaseException) -> bool:
    """Return whether an error comes from stopping Spark in the middle of a query, so from an interruption."""
    before = error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or _was_interrupted(before))


def _in_short(error: str, log: str) -> str:
    """Leave out the stack frames, which are indented, and of the log all but its errors."""
    lines = [line for line in error.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    logged = [line for line in log.splitlines() if "ERROR" in line or "Error" in line]
    return "\n".join([*lines[:4], *logged[-4:]])


def _start(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    warnings.filterwarnings(
        "ignore", "PySpark does not yet fully support pandas", FutureWarning
    )  # nothing here is pandas
    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(_search_path()),  # Spark reads in Python processes of its own
    }
    return (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def _search_path() -> list[str]:
    inherited = os.environ.get("PYTHONPATH")
    return [str(Path(mongoq.__file__).parents[1]), *([inherited] if inherited else [])]


def _stop(spark: SparkSession, log: Path) -> None:
    """Stop the session and wait for its JVM, which otherwise lives until this process has ended.

    A session that has already ended, or no longer answers after an interrupted query, is no failure of the demo. Nor
    are errors of PySpark's threads when the JVM closes their connections.
    """
    context: Any = spark.sparkContext
    gateway = context._gateway  # noqa: SLF001  # there is no public way to its process
    with _stderr_into(log):
        try:
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(timeout=STOPPING)
        except Exception:
            gateway.proc.kill()
            gateway.proc.wait(timeout=STOPPING)
            if listener := context._accumulatorServer:  # noqa: SLF001  # hears of the end by itself, and says so
                listener.shutdown()


@contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """Send what is written to stderr into a file. A JVM started in the block keeps writing there."""
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Hold an interrupt back until the end of the block: PySpark, interrupted as it starts, leaves a JVM behind."""
    held: list[int] = []
    signals = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(each, lambda number, _frame: held.append(number)) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
    if held:
        raise KeyboardInterrupt
