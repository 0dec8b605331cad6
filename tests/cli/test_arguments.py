"""Types of arguments: what they read, and how they refuse the rest."""

from __future__ import annotations

from datetime import UTC, datetime

import mongoq
from tests.cli.conftest import Run


def test_a_time_is_utc_unless_it_names_a_zone(run: Run, broker: mongoq.Broker) -> None:
    for text, at in (
        ("2096-11-26T14:30:00Z", datetime(2096, 11, 26, 14, 30, tzinfo=UTC)),
        ("2096-11-26T14:30:00.123456+02:00", datetime(2096, 11, 26, 12, 30, 0, 123_000, UTC)),
        ("2096-11-26T14:30", datetime(2096, 11, 26, 14, 30, tzinfo=UTC)),
        ("2096-11-26", datetime(2096, 11, 26, tzinfo=UTC)),
    ):
        assert run("push", "orders", "1", "--when", text).exit_code == 0
        assert [item.due for item in broker.queue("orders").peek(state="scheduled")] == [at]
        broker.queue("orders").purge()


def test_what_is_no_time_is_refused_with_examples(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    for text in ("", "yesterday", "2h ago", "-2h", "999999999w", "2026-13-01", "0001-01-01T00:00+10:00"):
        result = run("history", "orders", f"--since={text}")
        assert result.exit_code == 2, text
        assert "write it as" in result.stderr or "too long ago" in result.stderr
    assert run("history", "orders", "--since=200000w").exit_code == 0  # before the first year there is


def test_json_that_means_no_value_is_refused_in_one_line(run: Run, broker: mongoq.Broker) -> None:
    for text, problem in (
        ("{a: 1}", "not valid JSON"),
        ("NaN", "numberDouble"),
        ('{"a": [-1E999]}', "too large for a number"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' occurs twice"),
        ('{"$oid": "7"}', "extended JSON"),
        ('{"$date": "today"}', "extended JSON"),
        ("[" * 100_000, "nested too deeply"),
    ):
        result = run("push", "orders", text)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), text[:20]
        assert problem in result.stderr
    assert broker.queues() == []


def test_a_filter_with_other_operators_is_refused_by_its_place(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push({"n": 1})
    good = '{"name": {"$regex": "^a", "$options": "i"}, "id": {"$oid": "65a1b2c3d4e5f60718293a4b"}}'
    assert run("history", "orders", "--where", good).exit_code == 0
    for text, problem in (
        ('{"$where": "1"}', "$where"),
        ('{"a": {"$expr": 1}}', "where.a"),
        ("{}", "non-empty"),
        ("[1]", "non-empty"),
        ('{"a": {"$regularExpression": {"pattern": "x", "options": ""}}}', "$regex"),
    ):
        result = run("history", "orders", "--where", text)
        assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_a_name_that_no_queue_can_have_is_refused(run: Run, broker: mongoq.Broker) -> None:
    for name in ("", "$x", "a" * 121, "a\0b"):
        assert run("push", name, "1").exit_code == 2
    assert broker.queues() == []
