"""Forked processes start and die on order, and never outlive their owner."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.crash.fork_server import ROOT, ForkServer
from tests.waiting import PATIENCE

NOWHERE = {"uri": "mongodb://127.0.0.1:1/", "database": "crash", "engine": "threads", "seed": 1}
OWNER = f"""
import sys
from pathlib import Path
from tests.crash.fork_server import ForkServer
fork_server = ForkServer(Path(sys.argv[1]))
print(fork_server.start("work", **{NOWHERE}), flush=True)
sys.stdin.read()
"""


def ends(process: psutil.Process) -> bool:
    deadline = time.monotonic() + PATIENCE
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_process_that_ends_by_itself_is_reported_with_its_error(tmp_path: Path) -> None:
    with ForkServer(tmp_path / "log") as fork_server:
        pid = fork_server.start("work", **{**NOWHERE, "uri": "mongodb://"})
        assert ends(psutil.Process(pid))
        with pytest.raises(AssertionError, match=r"(?s)ended by itself.*InvalidURI"):
            fork_server.kill(pid)


@pytest.mark.prove
@pytest.mark.parametrize("victim", ["owner", "fork_server"])
def test_a_process_does_not_outlive_its_owner_or_the_fork_server(victim: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as owner:
        assert owner.stdout is not None
        process = psutil.Process(int(owner.stdout.readline()))
        fork_server = process.parent()
        assert fork_server is not None
        (fork_server if victim == "fork_server" else owner).kill()
        assert ends(process)
        owner.kill()
        assert ends(fork_server)
