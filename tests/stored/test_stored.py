"""The latest dump holds every documented field and kind of document, and what the current code writes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.stored.dump import Dump, by_kind, kind
from tests.stored.write import written

ENVELOPE = (Path(__file__).parents[2] / "docs" / "envelope.md").read_text()


# --- what a dump holds -----------------------------------------------------------------------


def described(heading: str) -> set[str]:
    """Return the fields of the first table below a heading of the page on the envelope."""
    rows = ENVELOPE.partition(f"{heading}\n")[2].partition("\n|---")[2].partition("\n\n")[0]
    return {name for row in rows.splitlines()[1:] for name in re.findall("`([^`]+)`", row.split("|")[1])}


def test_the_latest_dump_has_every_field_of_an_item_that_the_docs_name_and_no_other(latest: Dump) -> None:
    items = [document for document in latest.documents if isinstance(document["_id"], ObjectId)]
    assert {name for item in items for name in item} == described("## Fields")


def test_and_every_field_of_an_entry_of_a_trail(latest: Dump) -> None:
    entries = [entry for document in latest.documents for entry in document.get("trail", ())]
    assert {name for entry in entries for name in entry} == described("### Trails")


def test_and_every_field_within_one(latest: Dump) -> None:
    for name in ("error", "origin", "joined", "parked", "throttled"):
        [row] = [row for row in ENVELOPE.splitlines() if row.startswith(f"| `{name}` | document |")]
        documented = set(re.findall("`([^`]+)`", row)) - {name}
        subdocuments = [entry[name] for entry in latest.documents if name in entry]
        inputs = [entry for document in subdocuments for entry in document.get("inputs", ())]
        assert {field for document in [*subdocuments, *inputs] for field in document} == documented


def test_and_every_kind_of_control_documents(latest: Dump) -> None:
    named = {"lease:housekeeping", "lease:idle-queues"}
    documented = {each for each in re.findall("`([a-z]+:)[^`]+`", ENVELOPE) if each != "host:"} - {"lease:"} | named
    kinds = {kind(each) for each in latest.documents if isinstance(each["_id"], str)}
    assert kinds == documented


def test_and_every_setting_of_a_queue(latest: Dump) -> None:
    settings = {name for document in latest.documents for name in document.get("settings", ())}
    assert settings == {each.name for each in dataclasses.fields(mongoq.QueueSettings)} - {"name"}


@pytest.mark.timeout(300)
def test_the_current_code_writes_the_kinds_fields_and_types_of_the_latest_dump(latest: Dump, raw: Any) -> None:
    assert by_kind(written(raw)) == by_kind(latest)


def test_a_collection_that_is_ready_stays_as_it_is(broker: mongoq.Broker, store: Any, dump: Dump) -> None:
    broker.ensure_indexes()
    broker.queue("orders").push(1)
    assert [kind(document) for document in store.find({"_id": {"$regex": "^schema:"}})] == ["schema:"]
    indexes = {index["name"]: dict(index) for index in store.list_indexes()}
    new = indexes.keys() - {index["name"] for index in dump.indexes}
    assert new <= {"mongoq1_sequence"}  # collections of earlier versions get it beside the others
    assert [indexes[name] for name in sorted(indexes.keys() - new)] == dump.indexes
