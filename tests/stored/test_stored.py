"""The latest dump holds every documented field and kind of document, and what the current code writes."""

from __future__ import annotations

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
    items = [one for one in latest.documents if isinstance(one["_id"], ObjectId)]
    assert {name for item in items for name in item} == described("## Fields")


def test_and_every_field_of_an_entry_of_a_trail(latest: Dump) -> None:
    entries = [entry for one in latest.documents for entry in one.get("trail", ())]
    assert {name for entry in entries for name in entry} == described("### Trails")


@pytest.mark.parametrize("name", ["error", "origin", "joined", "parked"])
def test_and_every_field_within_one(latest: Dump, name: str) -> None:
    [row] = [row for row in ENVELOPE.splitlines() if row.startswith(f"| `{name}` | document |")]
    documented = set(re.findall("`([^`]+)`", row)) - {name}
    found = [one[name] for one in latest.documents if name in one]
    inputs = [one for document in found for one in document.get("inputs", ())]
    assert {field for document in [*found, *inputs] for field in document} == documented


def test_and_every_kind_of_control_documents(latest: Dump) -> None:
    named = {"lease:housekeeping", "lease:idle-queues"}
    documented = {one for one in re.findall("`([a-z]+:)[^`]+`", ENVELOPE) if one != "host:"} - {"lease:"} | named
    found = {kind(one) for one in latest.documents if isinstance(one["_id"], str)}
    assert found == documented


def test_and_every_setting_of_a_queue(latest: Dump) -> None:
    settings = {name for one in latest.documents for name in one.get("settings", ())}
    assert settings == {"lease", "history", "max_retries", "dead"}


@pytest.mark.timeout(300)
def test_the_current_code_writes_the_kinds_fields_and_types_of_the_latest_dump(latest: Dump, raw: Any) -> None:
    assert by_kind(written(raw)) == by_kind(latest)


def test_a_collection_that_is_ready_stays_as_it_is(broker: mongoq.Broker, store: Any, dump: Dump) -> None:
    broker.ensure_indexes()
    broker.queue("orders").push(1)
    assert [kind(one) for one in store.find({"_id": {"$regex": "^schema:"}})] == ["schema:"]
    assert sorted(map(dict, store.list_indexes()), key=lambda index: index["name"]) == dump.indexes
