"""The Java that Spark would start: where it is, and which version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

__all__ = ["JAVA", "java_version"]

JAVA = 17
"""The oldest that Spark 4 runs on."""
PATIENCE = 30.0
"""Seconds for a Java that tells its version: it takes a tenth of one."""
VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""Up to Java 8 the versions were 1.8 and so on."""


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start, or ``None`` if there is none that runs.

    Spark takes the one of ``JAVA_HOME``, else the first on ``PATH``.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")  # noqa: PTH118  # either is a string
    if java is None:
        return None
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None
