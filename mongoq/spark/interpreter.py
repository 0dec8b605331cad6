"""The Python that Spark starts for its tasks: its path, and whether it has the packages that tasks need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

__all__ = ["find_interpreter", "find_problem"]

VARIABLE = "PYSPARK_PYTHON"
PATIENCE_SECONDS = 60.0
PROBE = "import sys, mongoq, pymongo, pyarrow; print('%d.%d' % sys.version_info[:2])"
"""Imports of tasks; Spark itself adds PySpark to the path."""


def find_interpreter() -> str:
    """Return the Python as Spark names it: that of the context, if there is one, ``PYSPARK_PYTHON``, or ``python3``.

    ``spark-submit`` sets the variable from ``spark.pyspark.python``. Spark searches for the name on the search path.
    """
    # Without an import: a check before Spark starts must not load PySpark.
    module = sys.modules.get("pyspark.core.context")
    context = None if module is None else module.SparkContext._active_spark_context
    named = os.environ.get(VARIABLE) if context is None else context.pythonExec
    return named or "python3"


def find_problem(interpreter: str) -> str | None:
    """Import the packages of tasks in a Python, started as Spark starts it; returns the problem, or ``None``."""
    # The name is searched here as Spark searches it, on the search path.
    path = shutil.which(interpreter)
    if path is None:
        return "is not there"
    command = [path, "-c", PROBE]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    if told.returncode != 0:
        lines = told.stderr.strip().splitlines()
        return f"cannot import what tasks need: {lines[-1] if lines else 'it says nothing'}"
    # Spark refuses tasks whose Python has another minor version than the driver's.
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = told.stdout.strip()
    return None if version == own else f"is Python {version}, and the driver is {own}: Spark wants the same for both"
