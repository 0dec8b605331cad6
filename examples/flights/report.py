"""Spark reads the history and the dead letters straight from the queues, and sums them up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import mongoq
import mongoq.spark
from examples.flights.model import LATE
from examples.flights.pipeline import DONE, ERRORS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Delays", "Report", "ReportFailed", "read_report", "what_is_missing"]

COLUMNS = (
    "airline string, departure_delay int, "  # fields of the payload
    "weather struct<wind_speed: double, precip: double, visib: double>"
)

Classes = Sequence[tuple[float, str]]
"""Names of ranges of a number, each with its upper bound, which it does not hold."""

WEATHER: dict[str, tuple[str, Classes]] = {
    "visibility": (
        "weather.visib",
        [(1, "under 1 mile"), (5, "1 to 5 miles"), (10, "5 to 10 miles"), (inf, "10 miles")],
    ),
    "rain": ("weather.precip", [(0.005, "none"), (0.1, "under 0.1 inch"), (inf, "0.1 inch or more")]),
    "wind": ("weather.wind_speed", [(10, "under 10 mph"), (20, "10 to 20 mph"), (inf, "20 mph or more")]),
}
UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Delays:
    """The departure delays of a group of flights.

    Attributes:
        group: what they have in common.
        flights: how many there are.
        mean: their mean delay in minutes; leaving early counts as less than zero.
        late: the share that left more than 15 minutes late.
    """

    group: str
    flights: int
    mean: float
    late: float


@dataclass(frozen=True, slots=True)
class Report:
    """What Spark found.

    Attributes:
        flights: how many are in the history.
        carriers: delays by airline, the latest first.
        weather: delays by class of visibility, rain and wind.
        dead: how many dead letters there are by queue and reason.
    """

    flights: int
    carriers: list[Delays]
    weather: dict[str, list[Delays]]
    dead: list[tuple[str, str, int]]


class ReportFailed(Exception):
    """Spark could not be started, or a query failed; the text holds the end of its log."""


def what_is_missing() -> str | None:
    """Return a line that says what to install for Spark, or ``None`` when all is there."""
    try:
        mongoq.spark.check()
    except mongoq.spark.SparkUnavailable as unavailable:
        return str(unavailable)
    return None


def read_report(uri: str, database: str, collection: str) -> Report:
    """Let Spark read and sum up; takes ten seconds or so, most of it to start.

    Raises:
        ReportFailed: it could not.
    """
    with TemporaryDirectory(prefix="flights-spark-") as folder:
        log = Path(folder, "spark.log")
        try:
            with _session(Path(folder), log) as spark:
                options = {"uri": uri, "database": database, "collection": collection, "missing": "empty"}
                return _report(_history(spark, options), _dead(spark, options))
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from error
            raise ReportFailed(_in_short(str(error), log.read_text(errors="replace"))) from error


def _was_interrupted(error: BaseException) -> bool:
    """Say whether an error came of stopping Spark in the middle of a query, in other words of an interruption."""
    before = error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or _was_interrupted(before))


def _in_short(error: str, log: str) -> str:
    """Leave out the stack frames, which are indented, and of the log all but its errors."""
    told = [line for line in error.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    logged = [line for line in log.splitlines() if "ERROR" in line or "Error" in line]
    return "\n".join([*told[:4], *logged[-4:]])


def _report(history: DataFrame, dead: DataFrame) -> Report:
    from pyspark.sql import functions as F  # noqa: N812  # the name that everybody gives it

    history.persist()  # read once, for four questions
    rows = dead.groupBy("queue", "reason").count().orderBy(F.desc("count"), "queue", "reason").collect()
    return Report(
        flights=history.count(),
        carriers=sorted(_delays(history, F.col("airline")), key=lambda delays: -delays.late),
        weather={name: _by_class(history, F.col(column), classes) for name, (column, classes) in WEATHER.items()},
        dead=[(row["queue"], row["reason"], row["count"]) for row in rows],
    )


def _history(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The processed items of the last queue, their payloads as columns."""
    reader = spark.read.format("mongoq").options(**options, queue=DONE, view="history")
    return reader.schema(COLUMNS).load()


def _dead(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The dead letters: which queues they come from, and why."""
    reader = spark.read.format("mongoq").options(**options, queue=ERRORS, view="live")
    return reader.load().select("_origin.queue", "_origin.reason")


def _delays(history: DataFrame, group: Column) -> list[Delays]:
    from pyspark.sql import functions as F  # noqa: N812

    delay = F.col("departure_delay")
    late = F.avg(F.when(delay > LATE, 1.0).otherwise(0.0))
    sums = history.groupBy(group.alias("group")).agg(F.count("*"), F.avg(delay), late)
    return [Delays(group or "unknown", *numbers) for group, *numbers in sums.collect()]


def _by_class(history: DataFrame, number: Column, classes: Classes) -> list[Delays]:
    from pyspark.sql import functions as F  # noqa: N812

    name = F.when(number.isNull(), UNMEASURED)
    for bound, label in classes:
        name = name.when(number < bound, label)
    order = [*(label for _, label in classes), UNMEASURED]
    return sorted(_delays(history, name), key=lambda delays: order.index(delays.group))


# --- a session that says nothing, listens to nobody else, and leaves nothing behind -----------------


@contextmanager
def _session(folder: Path, log: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(_search_path()),  # Spark reads in Python processes of its own
    }
    with ExitStack() as stack:
        with _stderr_into(log), _uninterrupted():
            spark = (
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
            stack.callback(_stop, spark)
        spark.sparkContext.setLogLevel("ERROR")
        mongoq.spark.register(spark)
        yield spark


def _search_path() -> list[str]:
    inherited = os.environ.get("PYTHONPATH")
    return [str(Path(mongoq.__file__).parents[1]), *([inherited] if inherited else [])]


def _stop(spark: SparkSession) -> None:
    """Stop the session and wait for its JVM, which otherwise lives until this process has ended."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # there is no public way to its process
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=60)


@contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """Send what is written to stderr into a file. A JVM started in the block keeps writing there."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _uninterrupted() -> Iterator[None]:
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
