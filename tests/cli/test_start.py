"""The start of the command ``mongoq``: Ctrl-C may come while modules are still imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.cli.programs import ROOT
from tests.waiting import PATIENCE

SLOW_MODULE = """
import time
print("imports", flush=True)
while True:
    time.sleep(0.01)
"""


def script() -> str:
    """Return the program that an installation puts in place of the command ``mongoq``."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["mongoq"]
    module, _, function = entry.partition(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


def test_ctrl_c_while_modules_are_imported_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "pymongo.py").write_text(SLOW_MODULE)
    command = subprocess.Popen(
        [sys.executable, "-c", script(), "queues"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert command.stdout is not None
        assert command.stdout.readline() == "imports\n"
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=PATIENCE)
    finally:
        command.kill()
        command.communicate()
    assert (command.returncode, errors) == (130, "")


def test_the_command_takes_its_arguments(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script(), "--version"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mongoq, version ")
