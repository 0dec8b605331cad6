"""Members of the crew live and die as they are told, and never longer than their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.crash.nursery import ROOT, Nursery
from tests.waiting import PATIENCE

NOWHERE = {"uri": "mongodb://127.0.0.1:1/", "database": "crash", "engine": "threads", "seed": 1}
OWNER = f"""
import sys
from pathlib import Path
from tests.crash.nursery import Nursery
nursery = Nursery(Path(sys.argv[1]))
print(nursery.start("work", **{NOWHERE}), flush=True)
sys.stdin.read()
"""


def ends(process: psutil.Process) -> bool:
    deadline = time.monotonic() + PATIENCE
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_killed_member_is_gone_at_once(tmp_path: Path) -> None:
    with Nursery(tmp_path / "log") as nursery:
        pid = nursery.start("work", **NOWHERE)
        assert psutil.pid_exists(pid)
        nursery.signal(pid, signal.SIGSTOP)
        nursery.kill(pid)
        assert not psutil.pid_exists(pid)


def test_a_member_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Nursery(tmp_path / "log") as nursery:
        pid = nursery.start("work", **{**NOWHERE, "uri": "mongodb://"})
        assert ends(psutil.Process(pid))
        with pytest.raises(AssertionError, match=r"(?s)ended by itself.*InvalidURI"):
            nursery.kill(pid)


def test_closing_the_nursery_leaves_nobody(tmp_path: Path) -> None:
    with Nursery(tmp_path / "log") as nursery:
        pid = nursery.start("work", **NOWHERE)
        nursery.signal(pid, signal.SIGSTOP)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("victim", ["owner", "nursery"])
def test_a_member_does_not_outlive_its_owner_or_the_nursery(victim: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as owner:
        assert owner.stdout is not None
        member = psutil.Process(int(owner.stdout.readline()))
        nursery = member.parent()
        assert nursery is not None
        (nursery if victim == "nursery" else owner).kill()
        assert ends(member)
        owner.kill()
        assert ends(nursery)
