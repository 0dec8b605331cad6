"""A session, a JVM or a driver that is ended under a run leaves nothing reserved, and the run says what ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongoq

PROGRAM = Path(__file__).with_name("program.py")
ITEMS = 1_000
PATIENCE = 400


class Driver:
    """The program at work, in a process group of its own, started by ``python`` or by ``spark-submit``."""

    def __init__(self, starter: list[str], arguments: list[str], output: Path, environment: dict[str, str]) -> None:
        self.output = output
        self._log = output.with_suffix(".log").open("wb")
        self.process = subprocess.Popen(
            [*starter, str(PROGRAM), *arguments],
            env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def line(self, number: int) -> dict[str, Any]:
        """Wait for a line of what it says."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            lines = self.output.read_text().splitlines() if self.output.exists() else []
            if len(lines) > number:
                entry: dict[str, Any] = json.loads(lines[number])
                return entry
            time.sleep(0.1)
        raise AssertionError(self.output.with_suffix(".log").read_text()[-3000:])

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        self._log.close()


@pytest.fixture
def driver(store: Any, spark_environment: dict[str, str], tmp_path: Path) -> Iterator[Any]:
    started: list[Driver] = []

    def start(starter: str, *ways: str, **environment: str) -> Driver:
        submit = str(Path(sys.executable).with_name("spark-submit"))
        output = tmp_path / "said"
        place = [store.uri, store.collection.database.name, store.collection.name, str(output)]
        command = [sys.executable] if starter == "python" else [submit]
        started.append(Driver(command, [*place, *ways], output, os.environ | spark_environment | environment))
        return started[0]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def raw(store: Any) -> Iterator[mongoq.Queue[Any]]:
    with mongoq.Broker(store.collection) as broker:
        queue = broker.queue("raw")
        queue.push_many(range(ITEMS))
        yield queue


def check_all_is_given_back(store: Any, raw: mongoq.Queue[Any]) -> None:
    """No item is reserved, lost or doubled, and none of those that are left counts as run."""
    assert raw.counts().reserved == 0
    remaining = list(store.collection.find({"q": "raw"}))
    moved = list(store.collection.find({"q": "out"}))
    assert {item["attempts"] for item in remaining} == {0}
    assert sorted(item["payload"] for item in [*remaining, *moved]) == list(range(ITEMS))


@pytest.mark.timeout(PATIENCE + 200)
@pytest.mark.parametrize(
    ("starter", "kill"),
    [
        ("python", ("jvm", signal.SIGTERM)),
        pytest.param("spark-submit", ("group", signal.SIGINT), marks=pytest.mark.prove),
        pytest.param("spark-submit", ("jvm", signal.SIGTERM), marks=pytest.mark.prove),
        pytest.param("spark-submit", ("group", signal.SIGTERM), marks=pytest.mark.prove),
        pytest.param("python", ("jvm", signal.SIGKILL), marks=pytest.mark.prove),
        pytest.param("python", ("group", signal.SIGINT), marks=pytest.mark.prove),
        pytest.param("python", ("group", signal.SIGTERM), marks=pytest.mark.prove),
        pytest.param("python", ("python", signal.SIGTERM), marks=pytest.mark.prove),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}-{value[1].name}",
)
def test_a_signal_that_ends_spark_or_its_driver_leaves_nothing_reserved(
    driver: Any, store: Any, raw: mongoq.Queue[Any], starter: str, kill: tuple[str, signal.Signals]
) -> None:
    at_work, (whom, number) = driver(starter), kill
    jvm = at_work.line(0)["jvm"]
    while store.collection.count_documents({"q": "out"}) < 3:
        assert at_work.process.poll() is None
        time.sleep(0.1)
    if whom == "group":
        os.killpg(at_work.process.pid, number)
    else:
        os.kill(jvm if whom == "jvm" else at_work.process.pid, number)
    entry = at_work.line(1)
    if whom == "jvm":
        assert entry["ended"] == "ExecutorError"
        assert "the Spark session, or its JVM, has ended while the pipeline ran" in entry["message"]
        assert "its tasks have released the items that they had not settled" in entry["message"]
    else:
        assert entry == {"ended": "returned", "interrupted": True}
    check_all_is_given_back(store, raw)


@pytest.mark.prove
@pytest.mark.timeout(PATIENCE + 200)
def test_a_session_that_is_stopped_beside_a_run_is_reported_and_leaves_nothing_reserved(
    driver: Any, store: Any, raw: mongoq.Queue[Any]
) -> None:
    entry = driver("python", "stop").line(1)
    assert entry["ended"] == "ExecutorError"
    assert "the Spark session, or its JVM, has ended while the pipeline ran" in entry["message"]
    check_all_is_given_back(store, raw)


@pytest.mark.prove
@pytest.mark.timeout(PATIENCE + 200)
def test_a_frame_stage_whose_jvm_ends_leaves_nothing_reserved(
    driver: Any, store: Any, raw: mongoq.Queue[Any], tmp_path: Path
) -> None:
    at_work = driver("python", str(tmp_path / "checkpoint"))
    jvm = at_work.line(0)["jvm"]
    while store.collection.count_documents({"q": "out"}) < 3:
        assert at_work.process.poll() is None
        time.sleep(0.1)
    os.kill(jvm, signal.SIGTERM)
    entry = at_work.line(1)
    assert entry["ended"] == "ExecutorError"
    assert "the Spark session, or its JVM, has ended while the pipeline ran" in entry["message"]
    check_all_is_given_back(store, raw)


SLOW_PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*)
    echo started >> {starts}
    if [ "$(wc -l < {starts})" = 1 ]; then sleep 13; fi
esac
exec {python} "$@"
"""
"""The Python of executors: the first that reads a stream starts later than Spark waits for it."""


@pytest.mark.prove
@pytest.mark.timeout(PATIENCE + 200)
def test_a_frame_stage_whose_python_starts_too_slowly_for_spark_is_started_again(
    driver: Any, store: Any, raw: mongoq.Queue[Any], tmp_path: Path
) -> None:
    starts, slow = tmp_path / "starts", tmp_path / "python"
    slow.write_text(SLOW_PYTHON.format(starts=starts, python=sys.executable))
    slow.chmod(0o755)
    program = driver("python", str(tmp_path / "checkpoint"), PYSPARK_PYTHON=str(slow))
    deadline = time.monotonic() + PATIENCE
    while store.collection.count_documents({"q": "out"}) == 0:
        assert program.process.poll() is None, program.output.with_suffix(".log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(starts.read_text().split()) > 1
    assert "is started again: Spark waits 10 s for its Python" in program.output.with_suffix(".log").read_text()
    program.process.send_signal(signal.SIGTERM)
    assert program.line(1)["ended"] == "returned"
    check_all_is_given_back(store, raw)
