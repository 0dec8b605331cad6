"""The library does not pay for its command line and its metrics."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import {module}
heavy = {{name.partition(".")[0] for name in sys.modules}} & {{"click", "prometheus_client", "rich"}}
sys.exit(", ".join(sorted(heavy)) or None)
"""


@pytest.mark.parametrize("module", ["mongoq", "mongoq.cli", "mongoq.protocol.insight", "mongoq.monitoring"])
def test_an_import_loads_no_packages_of_extras(module: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
