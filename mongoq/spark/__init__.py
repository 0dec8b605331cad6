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

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mongoq.spark.errors import ColumnMismatch, RowRefused, RowsLost, SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ColumnMismatch", "RowRefused", "RowsLost", "SparkUnavailable", "register"]


def register(spark: SparkSession) -> None:
    """Tell a Spark session about ``format("mongoq")``.

    Needed with editable installs, ``--py-files`` and ``addPyFile``, where Spark does not look for formats;
    harmless otherwise. It lasts as long as the session and opens no connection to MongoDB.

    Args:
        spark: the session that is to read.

    Raises:
        SparkUnavailable: pyspark or pyarrow is not installed.
    """
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise SparkUnavailable(package)
    from mongoq.spark.source import MongoqDataSource

    spark.dataSource.register(MongoqDataSource)
