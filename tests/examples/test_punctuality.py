"""``python -m examples.punctuality``: what comes of a row is where the file says, once, whatever happens on the way."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from examples.flights.data import data_folder, raw_rows, reference
from examples.flights.model import RawRow
from examples.letters import Cause, causes
from examples.punctuality import pipeline
from examples.punctuality.handlers import WeatherTable
from examples.punctuality.pipeline import JUDGE, NAME, build
from examples.punctuality.proof import Facts, facts_of, prove
from examples.punctuality.queues import ARRIVALS, DEPARTURES, ERRORS, OUTPUTS, RAW
from examples.punctuality.report import read_report
from examples.punctuality.running import start_line
from examples.running import WORKERS, Site
from tests.examples.launching import Launch, output_of, wait_for
from tests.waiting import PATIENCE

ROWS = 150
ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}
FOLDER = data_folder()
WAITING = f"{NAME}.{JUDGE}.waiting"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def rows() -> list[RawRow]:
    return list(raw_rows(FOLDER, ROWS))


@pytest.fixture(scope="module")
def facts() -> Facts:
    return facts_of(FOLDER, ROWS)


@pytest.fixture(params=WORKERS)
def site(broker: mongoq.Broker, uri: str, request: pytest.FixtureRequest) -> Site:
    """Each engine."""
    return Site(broker, uri, request.param)


@cache
def weather() -> WeatherTable:
    return reference(FOLDER).weather


def run(site: Site) -> mongoq.Progress:
    work = build(FOLDER, ROWS, weather(), engine=site.engine, lease=timedelta(seconds=1.5))
    with start_line(work, site) as line:
        while not line.wait(PATIENCE):
            pytest.fail("the line does not come to its end")
        return line.progress()


def test_every_row_is_where_the_file_says_and_stays_there(
    site: Site, raw: Any, rows: list[RawRow], facts: Facts
) -> None:
    result = run(site)
    dead = sum(row["dep_time"] == "NA" for row in rows)
    arrived = sum(row["arr_delay"] != "NA" for row in rows)
    assert 0 < dead < arrived < ROWS - dead
    assert result.sources["rows"].pushed == ROWS
    assert [stage.settled for stage in result.stages.values()] == [ROWS, ROWS - dead, ROWS - dead]
    assert causes(site.broker, ERRORS) == {Cause("validate", "never departed", ""): dead}
    proof = prove(raw, facts)
    assert proof.holds
    assert {count.queue: count.expected for count in proof.counts} == {
        DEPARTURES.late: sum(row["dep_delay"] != "NA" and int(row["dep_delay"]) > 15 for row in rows),
        DEPARTURES.on_time: sum(row["dep_delay"] != "NA" and int(row["dep_delay"]) <= 15 for row in rows),
        ARRIVALS.late: sum(row["arr_delay"] != "NA" and int(row["arr_delay"]) > 15 for row in rows),
        ARRIVALS.on_time: sum(row["arr_delay"] != "NA" and int(row["arr_delay"]) <= 15 for row in rows),
        ERRORS: dead,
    }
    *weathers, whole = read_report(raw)
    assert (whole.departures.all, whole.arrivals.all) == (ROWS - dead, arrived)
    assert whole.departures.late == site.broker.queue(DEPARTURES.late).size()
    assert sum(group.departures.late for group in weathers) == whole.departures.late
    assert [group.weather for group in weathers] == ["dry", "rain", "not measured"]

    before = list(raw.find(ITEMS).sort("_id"))
    again = run(site)
    assert again.sources["rows"].pushed == 0, "another run reads nothing"
    assert [stage.settled for stage in again.stages.values()] == [0, 0, 0]
    assert list(raw.find(ITEMS).sort("_id")) == before, "and adds nothing"


@pytest.mark.prove
def test_a_file_that_breaks_off_ends_the_run_and_is_read_on_by_the_next(
    site: Site, raw: Any, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(folder: Path, rows: int) -> Iterator[RawRow]:
        yield from islice(raw_rows(folder, rows), 10)
        raise OSError("the file cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "raw_rows", breaking)
        with pytest.raises(mongoq.StageStopped, match="rows") as stopped:
            run(site)
    assert isinstance(stopped.value.__cause__, OSError)
    assert raw.count_documents({"reserved": True}) == 0
    assert run(site).sources["rows"].pushed == ROWS - 10
    assert prove(raw, facts).holds


# --- a proof that holds only where all is as it should be --------------------------------------------


# --- the program ------------------------------------------------------------------------------------


@pytest.fixture
def start(launch: Launch) -> Start:
    return partial(launch, "examples.punctuality")


@pytest.mark.prove
def test_the_program_ends_as_the_proof_does(start: Start, client: Any, database: str, own_uri: str) -> None:
    arguments = "--rows", 60, "--uri", own_uri
    output = output_of(start(*arguments))
    assert "the source has read 60 rows\n" in output
    assert re.search(r"^proven: 60 rows = \d+ departed late \+ \d+ on time \+ \d+ dead; 0 elsewhere$", output, re.M)
    assert "source_rows --> queue_raw" in output
    assert len(output.splitlines()) < 90, "a log is for reading"
    client[database]["punctuality_60"].delete_one({"q": DEPARTURES.late})
    output = output_of(start(*arguments), 1)
    assert "the source has read 0 rows, and 60 were read before" in output
    assert "NOT PROVEN: 60 rows ≠ " in output


def test_what_cannot_be_used_is_said_in_a_sentence(start: Start) -> None:
    output = output_of(start("--uri", "nonsense"), 2)
    assert "connection string" in output
    assert "Traceback" not in output


@pytest.fixture
def soon_forgotten(client: MongoClient[Any]) -> Iterator[None]:
    """Let the server drop the transactions of the dead soon: who takes over waits for that."""
    client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=1)
    yield
    client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=60)


@pytest.mark.prove
@pytest.mark.usefixtures("soon_forgotten")
@pytest.mark.parametrize("engine, queue", [("threads", RAW), ("asyncio", WAITING)])
def test_a_killed_run_is_finished_by_the_next(start: Start, raw: Any, own_uri: str, engine: str, queue: str) -> None:
    collection = raw.database["punctuality_400"]
    arguments = "--rows", 400, "--uri", own_uri, "--engine", engine, "--lease", 1
    process = start(*arguments)
    wait_for(process, lambda: collection.count_documents({"q": queue}))
    process.send_signal(signal.SIGKILL)
    process.wait()
    on_their_way = ITEMS | {"q": {"$nin": [*OUTPUTS, ERRORS]}}
    assert collection.count_documents(on_their_way), "it was killed in the middle of its work"
    assert "proven: 400 rows = " in output_of(start(*arguments))


@pytest.mark.prove
def test_an_interrupted_run_puts_everything_down(start: Start, client: Any, database: str, own_uri: str) -> None:
    collection = client[database]["punctuality_100000"]
    process = start("--rows", 100_000, "--uri", own_uri)
    wait_for(process, lambda: collection.count_documents({"q": {"$in": DEPARTURES}}))
    process.send_signal(signal.SIGINT)
    assert "interrupted" in output_of(process, 130)
    assert collection.count_documents({"reserved": True}) == 0
    assert "token" not in collection.find_one({"_id": "source:punctuality/rows"}), "the source is given back"
