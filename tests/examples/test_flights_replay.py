"""``python -m examples.flights_replay``: what a faulty version did wrong is mended, once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from examples.flights.data import data_folder, raw_rows, reference
from examples.flights.model import RawRow, Reference
from examples.flights_replay.pipeline import CHECKED, DONE, ERRORS, KENNEDY, build, push
from examples.flights_replay.place import COLLECTION, DEPARTURES, Place, open_place
from tests.examples.launching import Launch, needs_spark, output_of

MODULE = "examples.flights_replay"
ROWS = 40
ITEMS = {"_id": {"$type": "objectId"}, "q": {"$exists": True}}


@pytest.fixture(scope="module")
def tables() -> Reference:
    return reference(data_folder())


@pytest.fixture(scope="module")
def rows() -> list[RawRow]:
    return [row for row in raw_rows(data_folder(), 2000) if row["dep_time"] != "NA"][:60]


@pytest.fixture
def place(own_uri: str) -> Iterable[Place]:
    with open_place(own_uri) as place:
        yield place


def through(place: Place, pipeline: mongoq.Pipeline, rows: list[RawRow]) -> int:
    pushed = push(place.broker, rows)
    pipeline.drain(place.broker)
    return pushed


@pytest.mark.prove
@needs_spark
def test_only_what_the_faulty_version_did_wrong_is_copied_and_the_server_picks_it(
    launch: Launch, client: MongoClient[Any], database: str, own_uri: str
) -> None:
    client[database].command("profile", 2)
    output_of(launch(MODULE, "--rows", ROWS, "--uri", own_uri))
    client[database].command("profile", 0)
    collection = client[database][COLLECTION]
    documents = list(collection.find({"q": DONE, "processed": {"$exists": True}, "payload": {"$exists": True}}))
    originals = {item["_id"]: item["payload"] for item in documents}
    assert len(originals) == len(documents)
    days = [payload["scheduled"].date() for payload in originals.values()]
    assert date(2013, 7, 21) in days
    assert collection.count_documents({**ITEMS, "processed": {"$exists": False}}) == 0, "all are done"

    flights = [(each["carrier"], each["flight"], each["origin"], each["scheduled"]) for each in originals.values()]
    twice = {flight for flight in flights if flights.count(flight) > 1}
    assert len(set(flights)) == client[database][DEPARTURES].count_documents({})
    assert all(flights.count(flight) == 2 for flight in twice)
    assert {origin for _, _, origin, _ in twice} == {"EWR", "LGA"}
    new_york = {(scheduled.hour, scheduled.day) for *_, scheduled in twice}
    assert all(day in (22, 23) for _, day in new_york), "the day before is as it was"

    filters = [str(entry["command"]["filter"]) for entry in client[database].system.profile.find({"op": "query"})
               if entry["command"].get("find") == COLLECTION]  # fmt: skip
    assert any("payload.origin" in text and "processed" in text for text in filters)


def test_the_faulty_version_fails_at_nothing_and_is_wrong_elsewhere_than_at_kennedy(
    place: Place, tables: Reference, rows: list[RawRow]
) -> None:
    flights = through(place, build(tables, place.departures, broken=True), rows)
    wrong = place.wrong(tables)
    assert flights == place.flights().total() == len(rows)
    assert place.broker.queue(ERRORS).counts().total == 0
    assert set(wrong) == {"EWR", "LGA"}
    assert through(place, build(tables, place.departures), rows) == flights, "pushed again they are no new items"
    assert place.wrong(tables) == wrong


def test_the_mended_version_puts_right_what_it_is_given_again_and_stores_it_in_the_same_place(
    place: Place, tables: Reference, rows: list[RawRow]
) -> None:
    through(place, build(tables, place.departures, broken=True), rows)
    before = place.flights()
    copies = place.broker.queue(DONE).replay(to=CHECKED, where={"origin": {"$ne": KENNEDY}})
    assert copies.pushed == place.waiting() > 0
    build(tables, place.departures).drain(place.broker)
    assert place.flights() == before
    assert not place.wrong(tables)


@pytest.mark.prove
@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--day", "2014-01-02"), "no flight departed on 2014-01-02: the data are those of 2013"),
        (("--day", "yesterday"), "a day as YYYY-MM-DD, not 'yesterday'"),
        (("--rows", "0"), "a whole number from 1 up"),
        (("--uri", "nonsense"), "connection string"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(launch: Launch, arguments: tuple[str, ...], message: str) -> None:
    output = output_of(launch(MODULE, *arguments), 2)
    assert message in " ".join(output.split())
    assert "Traceback" not in output
