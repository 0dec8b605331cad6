"""``python -m examples.punctuality``: what comes of a row is where the file says, once, whatever happens on the way."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

import mongoq
from examples.flights.data import data_folder, raw_rows, reference
from examples.flights.model import RawRow
from examples.letters import Cause, causes
from examples.punctuality import pipeline
from examples.punctuality.handlers import WeatherTable, validate
from examples.punctuality.model import NumberedRow
from examples.punctuality.pipeline import JUDGE, NAME, build, numbered_rows
from examples.punctuality.proof import Facts, Proof, facts_of, prove
from examples.punctuality.queues import ARRIVALS, DEPARTURES, ERRORS, FLIGHTS, OUTPUTS, QUESTIONS, RAW
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


@pytest.fixture(scope="module")
def filled(uri: str, client: MongoClient[Any]) -> list[dict[str, Any]]:
    """What is in the collection after a run."""
    with mongoq.connect(uri, database="test_punctuality") as broker:
        run(Site(broker, uri))
        documents = list(client["test_punctuality"]["mongoq"].find(ITEMS))
    client.drop_database("test_punctuality")
    return documents


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


def test_the_source_goes_on_behind_its_position() -> None:
    whole = list(numbered_rows(None, folder=FOLDER, rows=20))
    assert [record.position for record in whole] == list(range(1, 21))
    assert [record.payload["number"] for record in whole] == list(range(1, 21))
    assert list(numbered_rows(15, folder=FOLDER, rows=20)) == whole[15:]
    assert list(numbered_rows(20, folder=FOLDER, rows=20)) == []


def test_rows_that_are_equal_are_distinguished(rows: list[RawRow]) -> None:
    row = next(row for row in rows if row["dep_time"] != "NA")
    first, second = (validate(NumberedRow.model_validate({"number": number, "row": row})) for number in (1, 2))
    assert isinstance(first, mongoq.Fork)
    assert isinstance(second, mongoq.Fork)
    assert [move.to for move in first.moves] == [FLIGHTS, QUESTIONS]
    assert {move.payload.number for move in first.moves} == {1}
    assert {move.payload.number for move in second.moves} == {2}


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


def one(documents: list[dict[str, Any]], queue: str, **payload: Any) -> dict[str, Any]:
    """Return the first document of a queue with these fields."""
    return next(
        document for document in documents if document["q"] == queue and payload.items() <= document["payload"].items()
    )


def removed(documents: list[dict[str, Any]], queue: str) -> None:
    documents.remove(one(documents, queue))


def doubled(documents: list[dict[str, Any]], queue: str) -> None:
    documents.append(one(documents, queue) | {"_id": ObjectId()})


def doubled_for_another(documents: list[dict[str, Any]], queue: str) -> None:
    removed(documents, queue)
    doubled(documents, queue)


def changed(documents: list[dict[str, Any]], **fields: Any) -> None:
    one(documents, DEPARTURES.on_time).update(fields)


def with_the_weather_of_another(documents: list[dict[str, Any]]) -> None:
    one(documents, DEPARTURES.on_time, rain=False)["payload"]["rain"] = True


def remembered(documents: list[dict[str, Any]]) -> None:
    documents.append({"_id": "join:punctuality/judge:1", "lines": []})


DAMAGES = {
    "a departure is missing": partial(removed, queue=DEPARTURES.late),
    "an arrival is missing": partial(removed, queue=ARRIVALS.on_time),
    "a letter is missing": partial(removed, queue=ERRORS),
    "a departure is there twice": partial(doubled, queue=DEPARTURES.on_time),
    "a letter is there twice": partial(doubled, queue=ERRORS),
    "one is there twice, another is missing": partial(doubled_for_another, queue=ARRIVALS.late),
    "one is in the wrong queue": partial(changed, q=DEPARTURES.late),
    "one is still on its way": partial(changed, q=RAW),
    "one waits in the join": partial(changed, q=WAITING),
    "one is in history": partial(changed, processed=datetime(2026, 1, 1, tzinfo=UTC)),
    "one says something else": partial(changed, payload={"number": 1, "delay": 99, "rain": False}),
    "one has the weather of another": with_the_weather_of_another,
    "the join remembers somebody": remembered,
}


@pytest.mark.prove
def test_the_proof_holds_for_what_a_run_leaves(filled: list[dict[str, Any]], raw: Any, facts: Facts) -> None:
    assert proof_of(raw, filled, facts).holds


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_the_proof_fails_when(
    filled: list[dict[str, Any]], raw: Any, facts: Facts, damage: Callable[..., None]
) -> None:
    documents = deepcopy(filled)
    damage(documents)
    assert not proof_of(raw, documents, facts).holds


def proof_of(raw: Any, documents: list[dict[str, Any]], facts: Facts) -> Proof:
    raw.insert_many(documents)
    return prove(raw, facts)


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
