"""Queues and history as Spark tables, and tables written to queues: ``spark.read.format("mongoq")``.

```python
history = (
    spark.read.format("mongoq")
    .option("uri", "mongodb://localhost")
    .option("database", "app")
    .option("queue", "orders")
    .option("view", "history")
    .schema("_processed timestamp, customer string, total decimal(10,2)")
    .load()
)
```

``mongoq.spark.source.MongoqDataSource`` describes the options and columns. Spark finds the format by itself if mongoq
is installed from a wheel; otherwise call ``register``.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mongoq.spark.errors import (
    ColumnMismatch,
    ExecutorError,
    ExecutorsUnready,
    RowRefused,
    RowsLost,
    SparkUnavailable,
)
from mongoq.spark.interpreter import JAVA, find_interpreter, find_problem, java_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "ColumnMismatch",
    "ExecutorError",
    "ExecutorsUnready",
    "RowRefused",
    "RowsLost",
    "SparkUnavailable",
    "check",
    "register",
]

REDACTION = "spark.sql.redaction.options.regex"
HIDDEN = "(?i:^uri$)"
PYTHON = (
    "set the environment variable PYSPARK_PYTHON to a Python with mongoq-driver[spark] before the session is made "
    "(os.environ['PYSPARK_PYTHON'] = sys.executable for the one that runs this program), or activate its environment"
)
OLDEST = (4, 2)
"""Oldest PySpark version that has everything the format uses."""


def check() -> None:
    """Raise an error, before Spark starts, if PySpark, pyarrow, Java, or mongoq in Spark's own Python is missing.

    Without Java, ``SparkSession.builder.getOrCreate()`` fails with a page of text; this function, called first, fails
    with one sentence. Spark runs the Python that ``PYSPARK_PYTHON`` names, else the first ``python3`` on the search
    path. It may differ from the Python that runs the program: if it has no mongoq, Spark reports that it does not find
    the data source. The function starts ``java -version`` and that Python, and nothing else. A session that connects to
    a Spark elsewhere needs no Java here, and no check. After ``getOrCreate`` the Python is the session's choice.

    Raises:
        SparkUnavailable: something is missing or too old; the message has the remedy.
    """
    check_packages()
    found = java_version()
    remedy = f"install Java {JAVA} or later (apt-get install default-jre-headless), or set JAVA_HOME to one"
    if found is None:
        raise SparkUnavailable("Java", "is not installed, or does not run", remedy)
    if found < JAVA:
        raise SparkUnavailable("Java", f"{found} is too old for Spark", remedy)
    interpreter = find_interpreter()
    if problem := find_problem(interpreter):
        raise SparkUnavailable(repr(interpreter), f"is the Python that Spark runs, and it {problem}", PYTHON)


def register(spark: SparkSession) -> None:
    """Register ``format("mongoq")`` with a Spark session.

    This is needed with editable installs, ``--py-files`` and ``addPyFile``, where Spark does not search for formats. It
    is also needed in each thread that writes but has not made the session: Spark searches for the format of a write
    only in the session that is active in the thread. Otherwise it does no harm. It lasts as long as the session and
    opens no connection to MongoDB.

    The function makes the session the active one of this thread. It also adds ``uri`` to
    ``spark.sql.redaction.options.regex``, so that Spark hides the URI of SQL ``OPTIONS`` in plans, in its UI and in its
    event log.

    Args:
        spark: the session that reads or writes.

    Raises:
        SparkUnavailable: pyspark or pyarrow is not installed, or is too old.
    """
    check_packages()
    from mongoq.spark.source import MongoqDataSource

    spark.dataSource.register(MongoqDataSource)
    _activate(spark)
    regex = spark.conf.get(REDACTION) or ""
    # The setting of the user stays in force beside ours; a second call adds nothing.
    if HIDDEN not in regex:
        spark.conf.set(REDACTION, f"{regex}|{HIDDEN}" if regex else HIDDEN)


def _activate(spark: Any) -> None:
    """Make the session the active one of this thread in the JVM, as ``createDataFrame`` does; Connect has none."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def check_packages() -> None:
    """Raise ``SparkUnavailable`` if PySpark or pyarrow is missing, or is too old."""
    # find_spec does not import: the check is quick, and a broken package does not raise here.
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise SparkUnavailable(package)
    if told := _version("pyspark"):
        parts = told.split(".")
        if tuple(int(part) for part in parts[:2] if part.isdigit()) < OLDEST:
            raise SparkUnavailable("pyspark", f"{told} is too old, mongoq needs {'.'.join(map(str, OLDEST))} or later")


def _version(package: str) -> str | None:
    """Return the version of an installed package; ``None`` for a package that is only on the search path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
