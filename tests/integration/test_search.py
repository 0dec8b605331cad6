"""Searches by a filter: each command examines one slice, and together they find each item once and in order."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
NUMBER, RARE = 45_000, 44_980


@pytest.fixture
def dead(broker: mongoq.Broker, raw: Any) -> Any:
    """Thousands of dead letters, many of one date, some with ids and priorities of other programs."""
    broker.ensure_indexes()
    now = datetime.now(UTC)
    odd: dict[int, dict[str, Any]] = {
        700: {"_id": "text", "priority": None},
        1_400: {"_id": 7},
        1_407: {"_id": {"a": 1}, "priority": 2.5},
        2_100: {"priority": float("nan")},
    }
    raw.insert_many(
        {
            "_id": ObjectId(),
            "q": "orders.dead",
            "payload": n,
            "priority": n % 3 - 1,
            "when": now - timedelta(hours=1, seconds=n // 5_000),
            "attempts": 0,
            "reserved": False,
            "origin": {"queue": "orders", "reason": "rare" if n == RARE else "common", "attempts": 1, "at": now},
            **odd.get(n, {}),
        }
        for n in range(NUMBER)
    )
    broker.queue("orders").push("something")
    return broker.queue("orders").dead


def listed(uri: str, database: str, *options: str) -> list[Any]:
    """Return the ids of the letters that the command lists."""
    command = [sys.executable, "-m", "mongoq", "dead", "list", "orders", "--uri", uri, "--database", database, "--json"]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return [str(json.loads(line)["id"]) for line in run.stdout.splitlines()]


def test_the_only_letter_of_its_kind_is_found_behind_all_others_in_slices(
    dead: Any, uri: str, database: str, raw: Any
) -> None:
    raw.database.command("profile", 2)
    try:
        found = listed(uri, database, "--reason", "rare")
    finally:
        raw.database.command("profile", 0)
    assert found == [str(raw.find_one({"payload": RARE})["_id"])]
    entries = list(raw.database["system.profile"].find({"ns": raw.full_name}))
    assert entries
    assert not [entry for entry in entries if "COLLSCAN" in entry.get("planSummary", "")]
    assert sorted(entry.get("docsExamined", 0) for entry in entries)[-2] > 0, "several commands share the search"
    assert max(entry.get("docsExamined", 0) for entry in entries) < NUMBER


def test_what_slices_find_together_is_everything_once_and_in_order(dead: Any, uri: str, database: str) -> None:
    found = listed(uri, database, "--where", '{"$mod": [7, 0]}', "--limit", "100000")
    whole = list(dead.history(state=None, where={"$mod": [7, 0]}))
    assert found == [str(item.id) for item in whole]
    assert sorted(item.payload for item in whole) == list(range(0, NUMBER, 7))


def test_every_page_has_items_of_each_priority_that_another_program_wrote(broker: mongoq.Broker, raw: Any) -> None:
    when, priorities = datetime(2024, 1, 1, tzinfo=UTC), [0, float("nan"), "low", None]
    envelope = {"q": "orders", "when": when, "attempts": 0, "reserved": False}
    broker.ensure_indexes()
    raw.insert_many([{**envelope, "priority": priorities[n // 300], "payload": n} for n in range(1200)])
    exported = [document["payload"] for page, _ in broker.queue("orders").select().export() for document in page]
    assert sorted(exported) == list(range(1200))
    assert broker.queue("orders").select(where={"$gte": 0}).count() == mongoq.BoundedCount(1200)
