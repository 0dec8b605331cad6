"""``python -m examples.flights`` from outside: what it prints, how it ends, and what it leaves behind."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pymongo import MongoClient

from examples.running import ENGINES, WORKERS
from tests.examples.launching import ON_SPARK, Launch, needs_spark, output_of, wait_for
from tests.waiting import PATIENCE

ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}
"""Not the ends of priorities, which a claim that was slow puts into the index."""
ROWS = 3000
"""Enough to be in the middle of when a process is killed."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(launch: Launch) -> Start:
    return partial(launch, "examples.flights")


def proven(output: str) -> tuple[int, int, int]:
    match = re.search(r"^proven: ([\d,]+) pushed = ([\d,]+) done \+ ([\d,]+) dead$", output, re.MULTILINE)
    assert match, output
    pushed, done, dead = (int(number.replace(",", "")) for number in match.groups())
    return pushed, done, dead


@pytest.fixture
def collection(client: MongoClient[Any], database: str) -> Any:
    return client[database]["flights"]


@needs_spark
@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engines", [["spark"], pytest.param(ENGINES, marks=pytest.mark.long)], ids=["spark", "all"])
def test_the_whole_demo_says_the_same_by_every_engine(start: Start, tmp_path: Path, engines: Sequence[str]) -> None:
    reports = []
    for engine in engines:
        picture = tmp_path / f"{engine}.png"
        output = output_of(start("--rows", 200, "--engine", engine, "--png", picture))
        pushed, done, dead = proven(output)
        assert (pushed, done + dead) == (200, 200)
        assert dead > 0
        assert f"Spark read {done} of {done} flights in history" in output
        assert "JetBlue Airways" in output
        assert "under 10 mph" in output
        assert re.search(rf"flights\.raw\W+never departed\W+{dead}\b", output)
        assert re.search(r"│ validate +│ +200 │ +[\d,]+ │ +– │ +– │ +[\d,]+ ms │ +[\d,]+ ms │", output)
        assert re.search(rf"│ finish +│ +{done} │ +[\d,]+ │( +[\d,]+ ms │){{4}}", output)
        assert f"the report as a picture: {picture}\n" in output
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert len(output.splitlines()) < 150, "a log is for reading"
        warned = 0 if engine == "spark" else 1  # executors have logs of their own
        assert output.count("WARN") == warned, "one of each kind: here of a last run that has failed"
        reports.append(output[output.index("delays by carrier") : output.index("throughput and latency")])
    assert reports == [reports[0]] * len(engines)
    assert re.search(r"delays by hour *\n.*\n.*\n.*\n│ 0[56] +│", reports[0])


@pytest.mark.prove
def test_a_second_run_doubles_nothing(start: Start, collection: Any, own_uri: str) -> None:
    arguments = "--rows", 300, "--no-spark", "--uri", own_uri
    first = output_of(start(*arguments))
    before = list(collection.find(ITEMS).sort("_id"))
    second = output_of(start(*arguments))
    assert proven(first) == proven(second)
    assert list(collection.find(ITEMS).sort("_id")) == before
    assert "the fix:" in first
    assert "the fix:" not in second, "there is nothing to replay"


@pytest.mark.parametrize("engine", ["threads", pytest.param("asyncio", marks=pytest.mark.prove)])
def test_what_failed_is_replayed_after_the_fix(start: Start, collection: Any, own_uri: str, engine: str) -> None:
    output = output_of(start("--rows", 300, "--no-spark", "--uri", own_uri, "--engine", engine))
    before, after = output.split("the fix: ")
    assert 'stage_enrich["enrich"]' in before
    letters = dict(re.findall(r"│ enrich +│ retries exhausted │ KeyError: '(\w+)' │ +(\d+) │", before))
    assert set(letters) <= {"BQN", "PSE", "SJU", "STT"}
    count = sum(map(int, letters.values()))
    assert count > 0
    assert after.startswith("stage 'enrich': handler was 'examples.flights.handlers:enrich_at_first', and is")
    assert f"{count} dead letters of stage enrich are replayed" in after
    assert re.search(rf"│ finish +│ +– │ +{count} │", after), "they are done"
    assert "KeyError" not in after, "none is left"
    _, _, dead = proven(output)
    for part in before, after:
        assert re.search(rf"│ validate +│ never departed +│ +│ +{dead} │", part)
    assert collection.count_documents({"q": "flights.errors", "origin.stage": "enrich"}) == 0
    assert collection.count_documents({"q": "flights.errors", "origin.stage": "validate"}) == dead
    trail = after[after.index("the way of flight") :]
    rows = re.findall(r"│ ([\w.]+) +│ (\w+) +│ +(\d) │ +[\d,]+ ms │ (\w+) +│ ([\w.]+) +│", trail)
    assert rows == [
        ("flights.raw", "validate", "1", "moved", "flights.checked"),
        ("flights.checked", "enrich", "2", "dead", "flights.errors"),
        ("flights.checked", "enrich", "1", "moved", "flights.done"),
        ("flights.done", "finish", "1", "done", "history"),
    ]


@pytest.mark.prove
@pytest.mark.parametrize("engine", [*WORKERS, pytest.param("spark", marks=(*ON_SPARK, pytest.mark.long))])
def test_a_killed_run_is_finished_by_the_next(start: Start, collection: Any, own_uri: str, engine: str) -> None:
    arguments = "--rows", ROWS, "--no-spark", "--uri", own_uri, "--engine", engine
    process = start(*arguments)
    wait_for_work(process, collection)
    process.kill()
    process.wait()
    at_work = {"q": {"$in": ["flights.raw", "flights.checked"]}, "processed": {"$exists": False}}
    assert collection.count_documents(at_work)
    collection.update_many({"reserved": True}, {"$set": {"when": datetime.now(UTC)}})  # as if their leases were over
    assert proven(output_of(start(*arguments)))[0] == ROWS
    assert collection.count_documents(ITEMS) == ROWS
    assert collection.distinct("origin.reason", {"q": "flights.errors"}) == ["never departed"]


@pytest.mark.parametrize(
    ("signum", "engine"),
    [
        (signal.SIGINT, "threads"),
        pytest.param(signal.SIGTERM, "asyncio", marks=pytest.mark.prove),
        pytest.param(signal.SIGINT, "asyncio", marks=pytest.mark.prove),
        pytest.param(signal.SIGTERM, "threads", marks=pytest.mark.prove),
        pytest.param(signal.SIGINT, "spark", marks=(*ON_SPARK, pytest.mark.prove)),
        pytest.param(signal.SIGTERM, "spark", marks=(*ON_SPARK, pytest.mark.prove, pytest.mark.long)),
    ],
)
def test_an_interrupted_run_puts_everything_down(
    start: Start, collection: Any, own_uri: str, signum: signal.Signals, engine: str
) -> None:
    process = start("--rows", 100_000, "--no-spark", "--uri", own_uri, "--engine", engine)
    wait_for_work(process, collection)
    process.send_signal(signum)
    assert "interrupted" in output_of(process, 130)
    assert collection.count_documents({"reserved": True}) == 0


@pytest.mark.prove
def test_the_dashboard_shows_the_data_until_a_signal_comes(start: Start) -> None:
    process = start("--rows", 40, "--engine", "threads", "--no-spark", "--dashboard")
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if address := re.search(r"the dashboard: (http://127\.0\.0\.1:\d+/)", line):
            break
    else:
        raise AssertionError("".join(lines))
    with urlopen(address[1] + "pipeline?name=flights", timeout=PATIENCE) as page:
        assert "flights.checked" in page.read().decode()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0


@pytest.mark.prove
def test_kept_data_is_there_again(start: Start, tmp_path: Path) -> None:
    arguments = "--rows", 50, "--no-spark", "--keep", tmp_path / "data"
    assert proven(output_of(start(*arguments))) == proven(output_of(start(*arguments)))


@pytest.mark.parametrize("java", ["", pytest.param("/nowhere", marks=pytest.mark.prove)])
def test_without_java_all_but_the_report_is_done(start: Start, own_uri: str, tmp_path: Path, java: str) -> None:
    output = output_of(start("--rows", 50, "--uri", own_uri, PATH=str(tmp_path), JAVA_HOME=java))
    assert proven(output)[0] == 50
    assert output.count("no Spark report, since Java is not installed") == 1
    assert "picture" not in output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--uri", "nonsense"), "connection string"),
        (("--rows", "0"), "a whole number from 1 up"),
        (("--png", "flights.png", "--no-spark"), "not allowed with argument"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(start: Start, arguments: tuple[str, ...], message: str) -> None:
    output = output_of(start(*arguments), 2)
    assert message in output
    assert "Traceback" not in output


def wait_for_work(process: subprocess.Popen[str], collection: Any) -> None:
    wait_for(process, lambda: collection.count_documents({"processed": {"$exists": True}}) >= 50)
