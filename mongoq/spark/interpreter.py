"""The Java and the Python that Spark starts: their paths, versions, and whether the packages are there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

__all__ = ["JAVA", "find_interpreter", "find_problem", "java_version"]

JAVA = 17
"""Oldest Java version that Spark 4 supports."""
PATIENCE = 30.0
"""Seconds to wait for ``java -version``; it takes about a tenth of a second."""
VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""Version in Java's output; up to Java 8 it was written 1.8."""


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start, or ``None`` if there is none that runs.

    Spark uses the Java of ``JAVA_HOME``, else the first on ``PATH``.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")  # noqa: PTH118  # either is a string
    if java is None:
        return None
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java writes its version to stderr; both outputs are searched.
    found = VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None


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
