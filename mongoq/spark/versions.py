"""Versions of PySpark: what each use of Spark needs, and the error where the installed one has not got it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from mongoq.spark.errors import SparkUnavailable

OLDEST_PYSPARK = {
    "running pipelines": (3, 5),
    'format("mongoq")': (4, 0),
    "the option pushdown": (4, 1),
    "writing streams": (4, 1),
    "reading streams": (4, 2),
    "running frame stages": (4, 2),
}
"""First PySpark that has what a use of Spark calls; each is seen to work there. The docs have the same table."""


def require(use: str) -> None:
    """Raise ``SparkUnavailable`` if PySpark or pyarrow is missing, or PySpark is too old for this use of Spark."""
    # find_spec does not import: the check is quick, and a broken package does not raise here.
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise SparkUnavailable(package)
    installed, oldest = pyspark_version(), OLDEST_PYSPARK[use]
    if installed and tuple(int(part) for part in installed.split(".")[:2] if part.isdigit()) < oldest:
        needed = ".".join(map(str, oldest))
        problem = f"needs PySpark {needed}, this is {installed}"
        raise SparkUnavailable(use, problem, f"install a later one (pip install 'pyspark>={needed}')")


def pyspark_version() -> str | None:
    """Return the version of PySpark; ``None`` for one that is only on the search path, and not imported yet."""
    # The imported one counts: Spark puts its own PySpark on the search path, before the installed package.
    if module := sys.modules.get("pyspark"):
        return str(module.__version__)
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None
