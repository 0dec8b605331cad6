"""The library does not pay for its command line and its metrics."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import mongoq
heavy = {name.partition(".")[0] for name in sys.modules} & {"click", "opentelemetry", "prometheus_client", "rich"}
sys.exit(", ".join(sorted(heavy)) or None)
"""


def test_an_import_loads_no_packages_of_extras() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
