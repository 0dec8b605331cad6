"""Commands ``schedules …``, and the check of ``doctor`` for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Read, Run


@pytest.fixture
def hourly(broker: mongoq.Broker) -> mongoq.Broker:
    broker.schedule("hourly", queue="reports", every=3600, payload={"a": 1})
    return broker


def age(raw: Any, name: str, **by: timedelta) -> None:
    """Put times of a schedule back."""
    for field, length in by.items():
        milliseconds = int(length.total_seconds() * 1000)
        raw.update_one({"_id": f"schedule:{name}"}, [{"$set": {field: {"$subtract": [f"${field}", milliseconds]}}}])


def test_schedules_are_listed(run: Run, read: Read, hourly: mongoq.Broker) -> None:
    for command in (["schedules"], ["schedules", "list"]):
        result = run(*command)
        assert result.exit_code == 0, result.stderr
        head, _, row = result.stdout.splitlines()
        assert head.split() == ["schedule", "what", "queue", "next", "last"]
        assert row.split()[:5] == ["hourly", "every", "3600", "s", "reports"]
    (document,) = read("schedules")
    assert (document["schedule"], document["paused"], document["late"]) == ("hourly", False, 0.0)
    assert document["next"].endswith(":00:00.000Z")


def test_a_schedule_without_a_next_tick_is_over(run: Run, read: Read, raw: Any, hourly: mongoq.Broker) -> None:
    hourly.schedule("once", queue="reports", at=datetime(2020, 1, 1, tzinfo=UTC))
    row = run("schedules").stdout.splitlines()[-1]
    assert row.startswith("once")
    assert row.split()[-1] == "over"
    (once,) = [document for document in read("schedules") if document["schedule"] == "once"]
    assert (once["next"], once["over"]) == (None, True)
    raw.update_one({"_id": "schedule:once"}, {"$set": {"what": 5}})
    assert "over" not in run("schedules").stdout  # what cannot be read says why, and no more


def test_the_next_tick_is_shown_in_the_zone_of_its_schedule(
    run: Run, read: Read, raw: Any, hourly: mongoq.Broker
) -> None:
    assert "local" not in run("schedules").stdout
    following = hourly.schedule("report", queue="reports", cron="0 6 1 7 *", timezone="Europe/Berlin")
    head, _, *rows = run("schedules").stdout.splitlines()
    assert head.split() == ["schedule", "what", "queue", "next", "local", "last"]
    year = following.year if following is not None else 0
    assert rows[-1].split()[-2:] == [f"{year}-07-01T04:00:00Z", f"{year}-07-01T06:00:00+02:00"]
    by_name = {document["schedule"]: document for document in read("schedules")}
    shown = {name: by_name["report"][name] for name in ("timezone", "next_local", "over")}
    assert shown == {"timezone": "Europe/Berlin", "next_local": f"{year}-07-01T06:00:00.000+02:00", "over": False}
    assert (by_name["hourly"]["timezone"], by_name["hourly"]["next_local"]) == (None, None)
    # Another program, or a machine with other zones: the list stays.
    for zone in ("Nowhere/Land", "../../etc/passwd", "", "x" * 5_000, "Europe"):
        raw.update_one({"_id": "schedule:report"}, {"$set": {"what.timezone": zone}})
        by_name = {document["schedule"]: document for document in read("schedules")}
        assert by_name["report"]["next"] == f"{year}-07-01T04:00:00.000Z"
        assert by_name["report"]["next_local"] is None
        assert run("schedules").exit_code == 0


def test_without_schedules_the_list_says_so(run: Run, broker: mongoq.Broker) -> None:
    broker.ensure_indexes()
    assert run("schedules").stdout == f"there are no schedules in {broker.namespace}\n"


def test_a_schedule_is_paused_and_resumed(run: Run, read: Read, hourly: mongoq.Broker) -> None:
    assert read("schedules", "pause", "hourly", "--dry-run")[0]["would"] == "pause the schedule hourly"
    assert not hourly.schedules()[0].paused
    assert run("schedules", "pause", "hourly").exit_code == 2  # a script must say --yes
    assert run("schedules", "pause", "hourly", "--yes").stdout == "hourly is now paused\n"
    assert hourly.schedules()[0].paused
    assert "paused" in run("schedules").stdout
    assert run("schedules", "pause", "hourly").stdout == "hourly was paused\n"
    expected = {"schedule": "hourly", "paused": False, "was_paused": True}
    assert read("schedules", "resume", "hourly", "--yes") == [expected]
    assert not hourly.schedules()[0].paused


def test_a_schedule_is_run_now(run: Run, read: Read, hourly: mongoq.Broker) -> None:
    assert read("schedules", "run", "hourly", "--dry-run")[0]["would"] == "push an extra item of hourly to reports"
    assert hourly.queue("reports").size() == 0
    (done,) = read("schedules", "run", "hourly", "--yes")
    item = hourly.queue("reports").get(ObjectId(done["id"]))
    assert item is not None
    assert item.payload == {"a": 1}
    assert "pushed item" in run("schedules", "run", "hourly", "--yes").stdout
    assert hourly.queue("reports").size() == 2


def test_a_schedule_is_removed(run: Run, read: Read, hourly: mongoq.Broker) -> None:
    assert read("schedules", "remove", "hourly", "--dry-run")[0]["count"] == 1
    assert len(hourly.schedules()) == 1
    removed = run("schedules", "remove", "hourly", "--yes")
    assert (removed.stdout, removed.stderr) == ("deleted the schedule hourly\n", "")
    assert hourly.schedules() == []


def test_removing_a_schedule_of_code_says_that_workers_keep_it_away(run: Run, hourly: mongoq.Broker) -> None:
    hourly.schedule("function", queue="reports", every=3600, make=str)
    removed = run("schedules", "remove", "function", "--yes")
    assert removed.stdout == "deleted the schedule function\n"
    assert "function belongs to a function; a running worker" in removed.stderr
    assert "only when it starts again" in removed.stderr


def test_an_unknown_schedule_is_refused(run: Run, hourly: mongoq.Broker) -> None:
    for command in ("pause", "resume", "run", "remove"):
        result = run("schedules", command, "hourl", "--yes")
        assert result.exit_code == 1
        assert "there is no schedule 'hourl'" in result.stderr
        assert "'hourly'" in result.stderr


def test_schedules_that_no_code_has_are_pruned(run: Run, read: Read, raw: Any, hourly: mongoq.Broker) -> None:
    hourly.schedule("gone", queue="reports", every=3600, make=str)
    assert run("schedules", "prune").stdout == "there is nothing to delete\n"
    age(raw, "gone", seen=timedelta(days=2))
    assert "in no running code" in run("schedules").stdout
    assert read("schedules", "prune", "--dry-run")[0]["would"] == "delete 1 schedule: gone"
    assert read("schedules", "prune", "--unseen", "3d", "--yes") == [{"deleted": []}]
    short = run("schedules", "prune", "--unseen", "29m", "--dry-run")
    assert short.exit_code == 2
    assert "unseen: 30 minutes or more" in short.stderr
    assert run("schedules", "prune").exit_code == 2
    assert read("schedules", "prune", "--yes") == [{"deleted": ["gone"]}]
    assert [record.name for record in hourly.schedules()] == ["hourly"]


def test_doctor_finds_late_unseen_and_broken_schedules(run: Run, read: Read, raw: Any, hourly: mongoq.Broker) -> None:
    def line() -> str:
        output = run("doctor").stdout
        return next(line for line in output.splitlines() if line.split()[1] == "schedules")

    assert line().split() == ["ok", "schedules", "1", "in", "time"]
    hourly.schedule("function", queue="reports", every=3600, make=str)
    age(raw, "function", seen=timedelta(days=2))
    assert line().startswith("warning")
    assert "no running code has function since" in line()
    age(raw, "hourly", next=timedelta(hours=3))
    assert line().startswith("problem")
    assert "no worker has made the ticks of hourly (" in line()
    raw.update_one({"_id": "schedule:hourly"}, {"$set": {"what": 5}})
    assert "unusable are hourly (it cannot be read" in line()
