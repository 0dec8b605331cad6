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

The options and columns are described at ``mongoq.spark.source.MongoqDataSource``. Spark finds the
format by itself where mongoq is installed from a wheel; elsewhere ``register`` tells it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mongoq.spark.errors import (
    ColumnMismatch,
    ExecutorError,
    ExecutorsUnready,
    RowRefused,
    RowsLost,
    SparkUnavailable,
)
from mongoq.spark.java import JAVA, java_version

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

OLDEST = (4, 2)
"""The first PySpark that has all that the format uses."""


def check() -> None:
    """Say what is missing before Spark is started: PySpark, pyarrow, or a Java for them.

    Without Java, ``SparkSession.builder.getOrCreate()`` fails with a page of text; called first, this fails with a
    sentence. It starts ``java -version`` and nothing else. A session that connects to a Spark elsewhere needs no Java
    here, and no check.

    Raises:
        SparkUnavailable: something is missing or too old; the sentence says what to do.
    """
    check_packages()
    found = java_version()
    remedy = f"install Java {JAVA} or later (apt-get install default-jre-headless), or set JAVA_HOME to one"
    if found is None:
        raise SparkUnavailable("Java", "is not installed, or does not run", remedy)
    if found < JAVA:
        raise SparkUnavailable("Java", f"{found} is too old for Spark", remedy)


def register(spark: SparkSession) -> None:
    """Tell a Spark session about ``format("mongoq")``.

    Needed with editable installs, ``--py-files`` and ``addPyFile``, where Spark does not look for formats;
    harmless otherwise. It lasts as long as the session and opens no connection to MongoDB.

    Args:
        spark: the session that is to read.

    Raises:
        SparkUnavailable: pyspark or pyarrow is not installed, or is too old.
    """
    check_packages()
    from mongoq.spark.source import MongoqDataSource

    spark.dataSource.register(MongoqDataSource)


def check_packages() -> None:
    """Raise ``SparkUnavailable`` if PySpark or pyarrow is missing, or is too old."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise SparkUnavailable(package)
    if told := _version("pyspark"):
        parts = told.split(".")
        if tuple(int(part) for part in parts[:2] if part.isdigit()) < OLDEST:
            raise SparkUnavailable("pyspark", f"{told} is too old, mongoq needs {'.'.join(map(str, OLDEST))} or later")


def _version(package: str) -> str | None:
    """Return the version of an installed package; one that is only on the search path tells none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
