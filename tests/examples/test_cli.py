"""``python -m examples.flights`` from outside: what it prints, how it ends, and what it leaves behind."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import MongoClient

from examples.flights import report
from examples.flights.report import what_is_missing
from tests.examples.launching import Launch, output_of, wait_for

ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}
"""Not the ends of priorities, which a claim that was slow puts into the index."""

Start = Callable[..., subprocess.Popen[str]]


def needs_spark(test: Callable[..., None]) -> Callable[..., None]:
    missing = what_is_missing()
    without = pytest.mark.skipif(missing is not None, reason=missing or "")
    return pytest.mark.slow(pytest.mark.spark(without(test)))


@pytest.fixture
def start(launch: Launch) -> Start:
    return partial(launch, "examples.flights")


def proven(output: str) -> tuple[int, int, int]:
    found = re.search(r"^proven: ([\d,]+) pushed = ([\d,]+) done \+ ([\d,]+) dead$", output, re.MULTILINE)
    assert found, output
    pushed, done, dead = (int(number.replace(",", "")) for number in found.groups())
    return pushed, done, dead


@pytest.fixture
def collection(client: MongoClient[Any], database: str) -> Any:
    return client[database]["flights"]


@needs_spark
def test_the_whole_demo_on_a_server_of_its_own(start: Start) -> None:
    output = output_of(start("--rows", 200))
    pushed, done, dead = proven(output)
    assert (pushed, done + dead) == (200, 200)
    assert dead > 0
    assert f"Spark read {done} of {done} flights in history" in output
    assert "JetBlue Airways" in output
    assert "under 10 mph" in output
    assert re.search(rf"flights\.raw\W+never departed\W+{dead}\b", output)
    assert len(output.splitlines()) < 120, "a log is for reading"
    assert output.count("WARN") == 1, "one of each kind: here of a last run that has failed"


def test_a_second_run_doubles_nothing(start: Start, collection: Any, own_uri: str) -> None:
    arguments = "--rows", 300, "--no-spark", "--uri", own_uri
    first = output_of(start(*arguments))
    before = list(collection.find(ITEMS).sort("_id"))
    second = output_of(start(*arguments))
    assert proven(first) == proven(second)
    assert list(collection.find(ITEMS).sort("_id")) == before
    assert "the fix:" in first
    assert "the fix:" not in second, "there is nothing to replay"


@pytest.mark.parametrize("engine", ["threads", "asyncio"])
def test_what_failed_is_replayed_after_the_fix(start: Start, collection: Any, own_uri: str, engine: str) -> None:
    output = output_of(start("--rows", 300, "--no-spark", "--uri", own_uri, "--engine", engine))
    before, after = output.split("the fix: ")
    assert 'stage_enrich["enrich"]' in before
    letters = dict(re.findall(r"│ enrich +│ retries exhausted │ KeyError: '(\w+)' │ +(\d+) │", before))
    assert set(letters) <= {"BQN", "PSE", "SJU", "STT"}
    lost = sum(map(int, letters.values()))
    assert lost > 0
    assert after.startswith("stage 'enrich': handler was 'examples.flights.handlers:enrich_at_first', and is")
    assert f"{lost} dead letters of stage enrich are replayed" in after
    assert re.search(rf"│ finish +│ +– │ +{lost} │", after), "they are done"
    assert "KeyError" not in after, "none is left"
    _, _, dead = proven(output)
    for part in before, after:
        assert re.search(rf"│ validate +│ never departed +│ +│ +{dead} │", part)
    assert collection.count_documents({"q": "flights.errors", "origin.stage": "enrich"}) == 0
    assert collection.count_documents({"q": "flights.errors", "origin.stage": "validate"}) == dead
    trail = after[after.index("the way of flight") :]
    told = re.findall(r"│ ([\w.]+) +│ (\w+) +│ +(\d) │ +[\d,]+ ms │ (\w+) +│ ([\w.]+) +│", trail)
    assert told == [
        ("flights.raw", "validate", "1", "moved", "flights.checked"),
        ("flights.checked", "enrich", "2", "dead", "flights.errors"),
        ("flights.checked", "enrich", "1", "moved", "flights.done"),
        ("flights.done", "finish", "1", "done", "history"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "asyncio"])
def test_a_killed_run_is_finished_by_the_next(start: Start, collection: Any, own_uri: str, engine: str) -> None:
    arguments = "--rows", 6000, "--no-spark", "--uri", own_uri, "--engine", engine
    process = start(*arguments)
    wait_for_work(process, collection)
    process.kill()
    process.wait()
    at_work = {"q": {"$in": ["flights.raw", "flights.checked"]}, "processed": {"$exists": False}}
    assert collection.count_documents(at_work)
    collection.update_many({"reserved": True}, {"$set": {"when": datetime.now(UTC)}})  # as if their leases were over
    assert proven(output_of(start(*arguments)))[0] == 6000
    assert collection.count_documents(ITEMS) == 6000
    assert collection.distinct("origin.reason", {"q": "flights.errors"}) == ["never departed"]


@pytest.mark.parametrize("engine", ["threads", "asyncio"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_puts_everything_down(
    start: Start, collection: Any, own_uri: str, signum: signal.Signals, engine: str
) -> None:
    process = start("--rows", 100_000, "--no-spark", "--uri", own_uri, "--engine", engine)
    wait_for_work(process, collection)
    process.send_signal(signum)
    assert "interrupted" in output_of(process, 130)
    assert collection.count_documents({"reserved": True}) == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_private_server_goes_with_the_demo(start: Start, signum: signal.Signals) -> None:
    process = start("--rows", 100_000)
    assert process.stdout is not None
    assert "loading 100,000 departures" in process.stdout.readline()
    process.send_signal(signum)
    process.wait(30)


@needs_spark
@pytest.mark.parametrize("seconds", [1, 10])
def test_spark_goes_with_an_interrupted_demo(start: Start, seconds: float) -> None:
    process = start("--rows", 50)
    deadline = time.monotonic() + 60
    while not any(child.name() == "java" for child in psutil.Process(process.pid).children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(seconds)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode in (0, 130), output
    assert "Traceback" not in output


def test_an_interrupted_report_is_no_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(folder: Path, log: Path) -> Iterator[None]:
        log.write_text("")
        try:
            yield
        finally:
            raise ConnectionError("Answer from Java side is empty")  # Spark was stopped in the middle of a query

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "_session", session)
    monkeypatch.setattr(report, "_history", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report.read_report("mongodb://127.0.0.1", "any", "any")


def test_kept_data_is_there_again(start: Start, tmp_path: Path) -> None:
    arguments = "--rows", 50, "--no-spark", "--keep", tmp_path / "data"
    assert proven(output_of(start(*arguments))) == proven(output_of(start(*arguments)))


@pytest.mark.parametrize("java", ["", "/nowhere"])
def test_without_java_all_but_the_report_is_done(start: Start, own_uri: str, tmp_path: Path, java: str) -> None:
    output = output_of(start("--rows", 50, "--uri", own_uri, PATH=str(tmp_path), JAVA_HOME=java))
    assert proven(output)[0] == 50
    assert "no Spark report, since Java is not installed" in output


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--uri", "nonsense"), "connection string"),
        (("--rows", "0"), "a whole number from 1 up"),
        (("--rows", "many"), "a whole number from 1 up"),
        (("--uri", "mongodb://x", "--keep", "y"), "not allowed with"),
        (("--engine", "trio"), "invalid choice: 'trio'"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(start: Start, arguments: tuple[str, ...], told: str) -> None:
    output = output_of(start(*arguments), 2)
    assert told in output
    assert "Traceback" not in output


def wait_for_work(process: subprocess.Popen[str], collection: Any) -> None:
    wait_for(process, lambda: collection.count_documents({"processed": {"$exists": True}}) >= 50)
