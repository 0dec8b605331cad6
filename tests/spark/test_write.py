"""Rows that become pushes, by the code that runs in a task."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, MaxKey, Regex, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, QueueNameInvalid
from mongoq.spark import RowRefused
from tests.spark.tables import Target

MOMENT = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
DAY = timedelta(days=1)


def test_columns_become_the_fields_of_a_payload(target: Target) -> None:
    target.write("customer string, total double", [("ann", 1.5), ("bob", None)])
    assert sorted(target.payloads, key=str) == [
        {"customer": "ann", "total": 1.5},
        {"customer": "bob", "total": None},
    ]
    document = target.documents[0]
    assert set(document) == {"_id", "q", "payload", "when", "priority", "attempts", "reserved", "once", "into"}
    assert (document["q"], document["priority"], document["attempts"], document["reserved"]) == ("orders", 0, 0, False)
    assert document["once"] - document["when"] >= 7 * DAY


def test_what_is_pushed_is_handed_out_and_its_id_is_remembered(target: Target) -> None:
    queue = target.broker.queue("orders")
    target.write("n int", [(1,)], once=3600)
    item = queue.reserve()
    assert item.payload == {"n": 1}
    queue.commit(item)
    target.write("n int", [(1,)], once=3600)
    assert queue.size() == 0


def test_a_column_payload_is_the_payload(target: Target) -> None:
    target.write("payload int", [(7,), (None,)])
    target.write("payload array<date>", [([datetime(2026, 1, 2).date()],)])
    target.write("payload struct<a:int>", [({"a": 1},)])
    assert sorted(target.payloads, key=str) == [7, None, ["2026-01-02"], {"a": 1}]


def test_a_string_column_payload_is_json(target: Target) -> None:
    texts = ['{"a": [1, 2.5, null]}', '"text"', "null", None, "3", "[]", "true"]
    target.write("payload string", [(text,) for text in texts])
    expected = [{"a": [1, 2.5, None]}, "text", None, None, 3, [], True]
    assert sorted(target.payloads, key=str) == sorted(expected, key=str)


def test_fields_say_which_columns_make_the_payload(target: Target) -> None:
    row = ("x", 1, "private", 5)
    target.write("b string, a int, payload string, _key int", [row], fields='["a", "b", "_key"]')
    assert target.payloads == [{"a": 1, "b": "x", "_key": 5}]
    assert list(target.payloads[0]) == ["a", "b", "_key"]


def test_columns_of_the_envelope_override_options(target: Target) -> None:
    ddl = "n int, _to string, _delay double, _when timestamp, _priority int, _headers map<string,string>"
    rows = [
        (0, None, None, None, None, None),
        (1, "refunds", 60.5, None, -3, [("trace", "t1")]),
        (2, None, None, MOMENT, 100, []),
        (3, None, 0.0, None, None, None),
    ]
    now = target.store.now
    target.write(ddl, rows, priority=7, delay=3600)
    by_number = {each["payload"]["n"]: each for each in target.documents}
    assert [(by_number[n]["q"], by_number[n]["priority"]) for n in range(4)] == [
        ("orders", 7), ("refunds", -3), ("orders", 100), ("orders", 7),
    ]  # fmt: skip
    assert by_number[1]["headers"] == {"trace": "t1"}
    assert [n for n in by_number if "headers" in by_number[n]] == [1]
    assert timedelta(minutes=59) < by_number[0]["when"] - now < timedelta(minutes=65)
    assert timedelta(seconds=60) < by_number[1]["when"] - now < timedelta(minutes=5)
    assert by_number[2]["when"] == MOMENT
    assert by_number[3]["when"] - now < timedelta(minutes=5)


def test_delays_may_be_intervals_and_headers_json(target: Target) -> None:
    ddl = "n int, _headers string"
    target.write(ddl, [(1, '{"a": {"b": [1]}}'), (2, None)], when=MOMENT.isoformat())
    by_number = {each["payload"]["n"]: each for each in target.documents}
    assert by_number[1]["headers"] == {"a": {"b": [1]}}
    assert by_number[1]["when"] == by_number[2]["when"] == MOMENT


def test_keys_keep_one_live_item(target: Target) -> None:
    ddl = "n int, _key string"
    target.write(ddl, [(1, "a"), (2, "a"), (3, "b"), (4, None), (5, None)])
    documents = target.documents
    assert sorted(str(each.get("key")) for each in documents) == ["None", "None", "a", "b"]
    target.write(ddl, [(1, "a"), (2, "a"), (3, "b"), (4, None), (5, None)])
    assert len(target.documents) == 4


def test_rows_that_were_read_leave_key_and_time_behind(target: Target) -> None:
    ddl = (
        "n int, _q string, _key string, _when timestamp, _priority int, _headers string, _state string, _once timestamp"
    )
    row = (1, "elsewhere", "k", MOMENT, 5, '{"h": 1}', "scheduled", MOMENT)
    target.write(ddl, [row])
    [document] = target.documents
    assert (document["q"], document["priority"], document["headers"]) == ("orders", 5, {"h": 1})
    assert "key" not in document
    assert document["when"] < MOMENT
    target.write(ddl, [row], to="copies", carry='["when", "key"]')
    [document] = [each for each in target.documents if each["q"] == "copies"]
    assert (document["key"], document["when"]) == ("k", MOMENT)


def test_pushes_reach_the_queues_bound_to_a_topic(target: Target) -> None:
    target.broker.bind("news", "mail", "log")
    for _ in range(2):
        target.write("n int, _key string", [(1, None), (2, None), (3, "k")], to="news")
    assert sorted((each["q"], each["payload"]["n"]) for each in target.documents) == [
        (queue, n) for queue in ("log", "mail") for n in (1, 2, 3)
    ]
    assert {each["origin"]["queue"] for each in target.documents} == {"news"}


def test_many_rows_go_in_few_commands_and_all_arrive(target: Target) -> None:
    rows = [(n, "x" * (n % 50)) for n in range(3000)]
    target.write("n int, s string", rows[:1700], rows[1700:], batchSize=1000)
    assert sorted(each["n"] for each in target.payloads) == list(range(3000))


GOOD_RAW = bson.encode({"payload": 1})
REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("payload string", ("{private",), r"column 'payload': text that is no JSON"),
    ("payload string", ("NaN",), r"column 'payload': text that is no JSON"),
    ("payload string", ("[" * 200 + "]" * 200,), r"column 'payload.*nested deeper"),
    ("payload string", ("[1, 99999999999999999999]",), r"column 'payload\[1\]': an integer beyond 64 bits"),
    ("payload string", ('{"$ref": "a", "$id": 1}',), r"column 'payload': a document with both"),
    ("payload string", (f'"{"private" * 2_400_000}"',), r"column 'payload': 16,800,019 bytes as BSON"),
    ("a struct<b:map<string,int>>", ({"b": [("x\0", 1)]},), r"column 'a.b': .*NUL"),
    ("_payload binary", (b"private",), "column '_payload': bytes that are no BSON"),
    ("_payload binary", (None,), "column '_payload': not the BSON of a document with the one field"),
    ("_payload binary", (b"\x05\0\0\0\0",), "column '_payload': not the BSON of a document with the one field"),
    ("a int, _priority int", (1, 101), r"column '_priority': it is to be an integer from -100 \(first\) to 100"),
    ("a int, _delay double", (1, -0.5), "column '_delay': it is to be seconds as a number, or an interval"),
    ("a int, _delay float", (1, float("nan")), "column '_delay': it is to be seconds"),
    ("a int, _delay double, _when timestamp", (1, 1.0, MOMENT), "column '_when': says when the item is due, and so"),
    ("a int, _to string", (1, "$private"), "column '_to': it is to be a string with the name of a queue"),
    ("a int, _sequence string", (1, ""), "column '_sequence': it is to be a string of 1 to 1,024 bytes"),
    ("a int, _sequence string", (1, "x" * 1025), "column '_sequence': it is to be a string of 1 to 1,024 bytes"),
    ("a int, _sequence string, _key string", (1, "s", "k"), "column '_sequence': an item in a sequence has no key"),
    ("a int, _key string", (1, ""), "column '_key': it is to be a string of 1 to 1,024 bytes"),
    ("a int, _headers string", (1, "[]"), "column '_headers': it is to be a map of strings"),
    ("a int, _headers string", (1, "private"), "column '_headers': it is to be a map of strings"),
    ("a int, _headers string", (1, '{"h": "' + "x" * 17000 + '"}'), "column '_headers': .* at most 16 KiB"),
    ("a decimal(38,4)", (Decimal("9" * 34 + ".9999"),), "column 'a': a decimal of more than 34 digits"),
]


def test_a_row_that_cannot_be_stored_is_named_and_not_quoted(target: Target) -> None:
    for place, (ddl, row, sentence) in enumerate(REFUSED):
        good = (GOOD_RAW if ddl == "_payload binary" else None, *(None for _ in row[1:]))
        with pytest.raises(RowRefused, match=f"row 2 of partition 0: {sentence}") as caught:
            target.write(ddl, [good, good], [row], label=f"case {place}")
        assert "private" not in str(caught.value)
        assert caught.value.row == 2
    assert len(target.documents) == 2 * len(REFUSED)


def test_a_row_without_a_queue_is_named(target: Target) -> None:
    with pytest.raises(RowRefused, match="row 1 of partition 0: column '_to': it says no queue to push to"):
        target.write("a int, _to string", [(1, "orders"), (2, None)], to=None)
    assert target.documents == []


@pytest.mark.parametrize("settle", ["true", "false"])
def test_nothing_of_a_slice_is_sent_when_one_of_its_rows_is_refused(target: Target, settle: str) -> None:
    with pytest.raises(RowRefused):
        target.write("a int, _priority int", [(1, 1), (2, 200)], settle=settle)
    assert target.documents == []


def test_a_payload_as_bson_is_copied_as_it_is(target: Target, rows: Any) -> None:
    payload = {"r": Regex("a", 2), "t": Timestamp(1, 2), "i": Int64(5), "d": Decimal128("1.500"), "m": MaxKey()}
    target.broker.queue("orders").push_many([payload, [payload, None]])
    target.write("_payload binary", rows("_payload binary"), to="copies")
    raw = target.store.collection.with_options(CodecOptions(document_class=RawBSONDocument))
    originals, copies = (
        [each.raw for each in raw.find({"q": q}, {"_id": 0, "payload": 1})] for q in ("orders", "copies")
    )
    assert sorted(originals) == sorted(copies)
    assert len(copies) == 2


UNWRITABLE: list[tuple[str, dict[str, Any], str]] = [
    ("a interval day to second", {}, "column 'a': type interval day to second cannot be written; make it a number"),
    ("a variant", {}, "column 'a': type variant cannot be written; make it a struct, or JSON text"),
    ("a struct<b:array<map<int,string>>>", {}, "column 'a': type map<int,string> cannot be written: the keys"),
    ("a int, _prority int", {}, "schema: no columns of the envelope: '_prority'; it has _attempts, _by"),
    ("a int, payload string", {}, "schema: columns 'payload', 'a' make several payloads; drop some"),
    ("_payload binary, payload string", {}, "columns '_payload', 'payload' make several payloads"),
    ("_q string, _state string", {}, "schema: no column makes the payload"),
    ("a int", {"fields": '["b"]'}, "fields: there is no column 'b'; there are a"),
    ("a int", {"idColumn": "b"}, "idColumn: there is no column 'b'"),
    ("a double", {"idColumn": "a"}, "idColumn: column 'a': type double makes no id; cast it to a string"),
    ("a int, _sequence int", {}, "column '_sequence' is to be a string of 1 to 1,024 bytes, not int"),
    ("a int, _priority string", {}, r"column '_priority' is to be an integer from -100 .*, not string"),
    ("a int, _headers map<string,int>", {}, "column '_headers' is to be a map of strings to strings"),
    ("a int, _token int, _id string", {}, "column '_token' is to be a string, not int"),
    ("_payload string", {}, "column '_payload' is to be a binary, not string"),
    ("a int", {"to": None}, "to: this option is missing: the queue to push to; or add a column '_to'"),
    ("`$ref` string, `$id` int", {}, "fields '\\$ref' and '\\$id' together would come back as a DBRef"),
]


def test_a_column_that_cannot_be_written_is_named(target: Target) -> None:
    for ddl, options, sentence in UNWRITABLE:
        with pytest.raises(ArgumentInvalid, match=sentence):
            target.writer(ddl, **options)
    assert target.store.collection.count_documents({}) == 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"uri": ""}, "uri: this option is empty"),
    ({"to": ""}, "to: a queue name cannot be empty"),
    ({"queue": "x"}, "queue: not an option of format mongoq, which has uri, database, collection, to"),
    ({"pritority": "1"}, "pritority: not an option of format mongoq"),
    ({"path": "/x"}, "path: '/x' and the option to"),
    ({"delay": "-1"}, "delay: '-1' is no duration"),
    ({"delay": "999999999999"}, "delay: cannot be longer than 36525 days"),
    ({"delay": "1", "when": "2026-11-20T08:30:00Z"}, "when: delay and when say both"),
    ({"when": "2026-11-20T08:30:00"}, "when: a time in ISO 8601 with an offset"),
    ({"priority": "101"}, r"priority: a whole number from -100 \(first\) to 100 \(last\), not '101'"),
    ({"priority": "1.5"}, "priority: a whole number"),
    ({"fields": "a, b"}, "fields: a list of names as JSON"),
    ({"idColumn": " "}, "idColumn: this option is empty"),
    ({"label": "x" * 101}, "label: 101 bytes in UTF-8, and 100 is the limit"),
    ({"once": "0.0001"}, "once: must be a millisecond or longer"),
    ({"carry": '["state"]'}, "carry: some of when, key, priority, headers, not 'state'"),
    ({"settle": "yes"}, "settle: one of true, false, not 'yes'"),
    ({"lost": "drop"}, "lost: one of ignore, fail, not 'drop'"),
    ({"batchSize": "10001"}, "batchSize: a whole number from 1 to 10,000"),
    ({"expires": "0"}, "expires: must be a millisecond"),
    ({"expires": "60", "delay": "60"}, "expires: items wait 60.0 seconds"),
]


def test_a_bad_option_is_named(target: Target) -> None:
    for options, sentence in BAD:
        with pytest.raises((ArgumentInvalid, QueueNameInvalid), match=sentence):
            target.writer("n int", **options)
    with pytest.raises(ArgumentInvalid, match="mode: rows are pushed to a queue, and overwrite nothing"):
        target.writer("n int", overwrite=True)
    assert target.store.uri not in repr(target.writer("n int"))


def test_names_of_options_come_in_any_case(target: Target) -> None:
    target.write("n int, _key string", [(1, "a")], PRIORITY="-7", IDCOLUMN="n", Fields='["_key"]', Settle="FALSE")
    [document] = target.documents
    assert (document["priority"], document["payload"]) == (-7, {"_key": "a"})


EVERY = (
    "s string, b boolean, i8 byte, i16 short, i32 int, i64 long, f float, d double, dec decimal(38,10), day date, "
    "at timestamp, wall timestamp_ntz, raw binary, l array<int>, m map<string,int>, t struct<a:int,b:array<string>>"
)


def test_what_is_written_is_read_equal(target: Target, rows: Any) -> None:
    wall = datetime(1969, 12, 31, 23, 59, 59, 999_000)
    values = ("\u017c\0", True, -128, 32767, -(2**31), 2**63 - 1, 0.5, 5e-324, Decimal("1.5"), wall.date(),
              wall.replace(tzinfo=UTC), wall, b"\0\xff", [1, None], [("k", 1)], {"a": None, "b": ["x"]})  # fmt: skip
    target.write(EVERY, [values, (None,) * len(values)])
    first, second = sorted(rows(EVERY), key=lambda row: row[0] is None)
    assert first == values
    assert second == (None,) * len(values)
    assert target.documents[0]["payload"].keys() == {name.split()[0] for name in EVERY.split(", ")}
    fine = wall.replace(microsecond=999_999, tzinfo=UTC)
    target.write("at timestamp", [(fine,)], to="cut")
    assert rows("at timestamp", queue="cut") == [(wall.replace(tzinfo=UTC),)]


def test_types_nested_deeper_than_arrow_brings_are_refused_with_the_path(target: Target) -> None:
    path = re.escape("'c" + "[]" * 62 + "'")
    with pytest.raises(ArgumentInvalid, match=f"schema: field {path} nests deeper than the 62 levels .*; .*to_json"):
        target.writer("c " + "array<" * 63 + "int" + ">" * 63)
