"""The command ``python -m mongoq.embedded``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from pymongo.errors import PyMongoError

from tests.waiting import PATIENCE

COMMAND = [sys.executable, "-m", "mongoq.embedded"]
WITHOUT_MONGOD = """
import runpy, sys
sys.modules["fiftyone"] = None  # the package that brings one
runpy.run_module("mongoq.embedded", run_name="__main__")
"""


@pytest.fixture
def command() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    started = subprocess.Popen(COMMAND, stdout=pipe, stderr=pipe, text=True)
    yield started
    if started.poll() is None:
        started.terminate()
    started.communicate(timeout=PATIENCE)


def has_server(uri: str, seconds: int) -> bool:
    with pymongo.MongoClient[object](uri, serverSelectionTimeoutMS=seconds * 1000) as client:
        try:
            client.admin.command("ping")
        except PyMongoError:
            return False
        return True


def test_it_prints_the_uri_of_a_server_and_ends_on_a_signal(command: subprocess.Popen[str]) -> None:
    assert command.stdout is not None
    uri = command.stdout.readline().strip()
    assert has_server(uri, int(PATIENCE))
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=PATIENCE)
    assert (command.returncode, errors) == (0, "")
    assert not has_server(uri, 1)


def test_without_a_server_it_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MONGOD],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("mongoq: ")
    assert "Traceback" not in done.stderr
