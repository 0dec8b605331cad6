"""The process that Spark forks its Python workers from, with what they need imported once and not by each of them."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark.daemon import manager

import mongoq.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()
