from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mongoq.errors import ArgumentInvalid, QueueNameInvalid
from mongoq.spark.write.write_options import WriteOptions

GOOD = {"uri": "mongodb://ann:s3cret@localhost", "to": "orders"}


def test_defaults() -> None:
    options = WriteOptions.parse(GOOD)
    assert (options.place.database, options.place.collection, options.to) == (None, "mongoq", "orders")
    assert (options.delay, options.when, options.priority, options.label) == (None, None, None, "")
    assert (options.fields, options.id_column, options.carry) == (None, None, frozenset())
    assert (options.once, options.settle, options.lost, options.batch_size) == (
        timedelta(days=7), None, "ignore", 10_000,
    )  # fmt: skip
    assert WriteOptions.parse(GOOD, stream=True).settle is True


def test_names_of_options_come_in_any_case() -> None:
    options = WriteOptions.parse(
        {
            "URI": "mongodb://localhost", "TO": "q", "IDCOLUMN": "n", "Once": "0.5", "delay": "0", "PRIORITY": "-100",
            "Carry": '["key"]', "fields": '["b", "a", "b"]', "Settle": "FALSE", "LOST": "Fail", "batchsize": "1",
        }
    )  # fmt: skip
    assert (options.to, options.id_column, options.once) == ("q", "n", timedelta(seconds=0.5))
    assert (options.delay, options.priority, options.carry) == (timedelta(0), -100, {"key"})
    assert (options.fields, options.settle, options.lost, options.batch_size) == (("b", "a"), False, "fail", 1)


def test_a_time_has_an_offset() -> None:
    options = WriteOptions.parse(GOOD | {"when": "2026-11-20T09:30:00+01:00"})
    assert options.when == datetime(2026, 11, 20, 8, 30, tzinfo=UTC)


def test_credentials_are_not_shown() -> None:
    assert "s3cret" not in repr(WriteOptions.parse(GOOD))


def test_a_stream_may_have_the_options_of_spark() -> None:
    options = GOOD | {"checkpointLocation": "/x", "queryName": "y"}
    WriteOptions.parse(options, stream=True)
    with pytest.raises(ArgumentInvalid, match="checkpointlocation: not an option"):
        WriteOptions.parse(options)


BAD: list[tuple[dict[str, str | None], str, type[Exception]]] = [
    ({"uri": None}, "uri: this option is missing", ArgumentInvalid),
    ({"to": ""}, "to: a queue name cannot be empty", QueueNameInvalid),
    ({"to": "x" * 121}, "to: 121 bytes", QueueNameInvalid),
    ({"queue": "x"}, "queue: not an option of format mongoq, which has uri, database, collection, to", ArgumentInvalid),
    ({"path": "/x"}, "path: '/x' and the option to", ArgumentInvalid),
    ({"delay": "-1"}, "delay: a number of seconds", ArgumentInvalid),
    ({"delay": "1e12"}, "delay: cannot be longer than 36525 days", ArgumentInvalid),
    ({"delay": "1", "when": "2026-11-20T08:30:00Z"}, "when: delay and when say both", ArgumentInvalid),
    ({"when": "2026-11-20T08:30:00"}, "when: a time in ISO 8601 with an offset", ArgumentInvalid),
    ({"priority": "101"}, r"priority: a whole number from -100 \(first\) to 100 \(last\), not '101'", ArgumentInvalid),
    ({"priority": ""}, "priority: a whole number", ArgumentInvalid),
    ({"priority": "1.5"}, "priority: a whole number", ArgumentInvalid),
    ({"priority": "1_0"}, "priority: a whole number", ArgumentInvalid),
    ({"when": "9999-12-31T23:59:59-10:00"}, "when: a time in ISO 8601 with an offset", ArgumentInvalid),
    ({"fields": "a, b"}, "fields: a list of names as JSON", ArgumentInvalid),
    ({"fields": "[]"}, "fields: a list of names as JSON", ArgumentInvalid),
    ({"fields": "[1]"}, "fields: a list of names as JSON", ArgumentInvalid),
    ({"fields": '{"a": 1}'}, "fields: a list of names as JSON", ArgumentInvalid),
    ({"idColumn": " "}, "idColumn: this option is empty", ArgumentInvalid),
    ({"label": "x" * 101}, "label: 101 bytes in UTF-8, and 100 is the limit", ArgumentInvalid),
    ({"once": "0"}, "once: a number of seconds", ArgumentInvalid),
    ({"once": "0.0001"}, "once: must be a millisecond or longer", ArgumentInvalid),
    ({"carry": '["state"]'}, "carry: some of when, key, priority, headers, not 'state'", ArgumentInvalid),
    ({"carry": "key"}, "carry: a list of names as JSON", ArgumentInvalid),
    ({"settle": "yes"}, "settle: one of true, false, not 'yes'", ArgumentInvalid),
    ({"lost": "drop"}, "lost: one of ignore, fail, not 'drop'", ArgumentInvalid),
    ({"batchSize": "0"}, "batchSize: a whole number from 1 to 10,000", ArgumentInvalid),
    ({"batchSize": "10001"}, "batchSize: a whole number from 1 to 10,000", ArgumentInvalid),
]


@pytest.mark.parametrize(("change", "sentence", "kind"), BAD)
def test_a_bad_option_is_named(change: dict[str, str | None], sentence: str, kind: type[Exception]) -> None:
    options = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(kind, match=sentence):
        WriteOptions.parse(options)
