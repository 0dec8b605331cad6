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

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from mongoq.spark.errors import (
    ColumnMismatch,
    ExecutorError,
    ExecutorsUnready,
    RowRefused,
    RowsLost,
    SparkUnavailable,
)
from mongoq.spark.versions import require

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
OLDEST_JAVA = 17
"""Oldest Java version that Spark 4 supports."""
VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""Version in Java's output; up to Java 8 it was written 1.8."""
CHECK_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for Java, which takes about a tenth of a second, and for the imports of a Python."""
PROBE = "import sys, mongoq, pymongo, pyarrow; print('%d.%d' % sys.version_info[:2])"
"""Imports of tasks; Spark itself adds PySpark to the path."""


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
    require("running pipelines")
    java = java_version()
    remedy = f"install Java {OLDEST_JAVA} or later (apt-get install default-jre-headless), or set JAVA_HOME to one"
    if java is None:
        raise SparkUnavailable("Java", "is not installed, or does not run", remedy)
    if java < OLDEST_JAVA:
        raise SparkUnavailable("Java", f"{java} is too old for Spark", remedy)
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
    require('format("mongoq")')
    from pyspark.errors import AnalysisException

    from mongoq.spark.source import MongoqDataSource

    try:
        spark.dataSource.register(MongoqDataSource)
    except AnalysisException as error:
        # Spark 4.0 keeps a format that it has found by itself; later versions replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
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


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start, or ``None`` if there is none that runs.

    Spark uses the Java of ``JAVA_HOME``, else the first on ``PATH``.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")  # noqa: PTH118  # either is a string
    if java is None:
        return None
    try:
        result = _run(java, "-version")
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java writes its version to stderr; both outputs are searched.
    match = VERSION.search(result.stderr + result.stdout)
    return int(match[1]) if match else None


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=CHECK_TIMEOUT_SECONDS, check=False)


def find_interpreter() -> str:
    """Return the Python as Spark names it: that of the context, if there is one, ``PYSPARK_PYTHON``, or ``python3``.

    ``spark-submit`` sets the variable from ``spark.pyspark.python``. Spark searches for the name on the search path.
    """
    # Without an import: a check before Spark starts must not load PySpark.
    module = sys.modules.get("pyspark.core.context")
    context = None if module is None else module.SparkContext._active_spark_context
    named = os.environ.get("PYSPARK_PYTHON") if context is None else context.pythonExec
    return named or "python3"


def find_problem(interpreter: str) -> str | None:
    """Import the packages of tasks in a Python, started as Spark starts it; returns the problem, or ``None``."""
    # The name is searched here as Spark searches it, on the search path.
    path = shutil.which(interpreter)
    if path is None:
        return "is not there"
    try:
        result = _run(path, "-c", PROBE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        return f"cannot import what tasks need: {lines[-1] if lines else 'it says nothing'}"
    # Spark refuses tasks whose Python has another minor version than the driver's.
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = result.stdout.strip()
    return None if other == own else f"is Python {other}, and the driver is {own}: Spark wants the same for both"
