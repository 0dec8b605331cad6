"""The Java that Spark starts: its path and its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

__all__ = ["JAVA", "java_version"]

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
