"""The library does not pay for its command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import {module}
heavy = {{name.partition(".")[0] for name in sys.modules}} & {{"click", "rich"}}
sys.exit(", ".join(sorted(heavy)) or None)
"""


@pytest.mark.parametrize("module", ["mongoq", "mongoq.cli", "mongoq.protocol.insight"])
def test_an_import_loads_neither_click_nor_rich(module: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
