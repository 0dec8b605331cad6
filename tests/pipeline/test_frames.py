"""Payloads as frames and back: what a function leaves alone is stored as it was, to the last byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import bson
import hypothesis.strategies as st
import numpy
import pandas
import pyarrow
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, example, given, settings

import mongoq
from mongoq.model.encoding.codec import codec_options
from mongoq.model.item import Item
from mongoq.model.outcomes import Drop, Fork, Move, Outcome
from mongoq.model.settings import KEEP
from mongoq.pipeline.frames.handler import FrameHandler
from mongoq.worker import Job

OPTIONS = codec_options()
NOW = datetime(2026, 11, 22, 12, 30, 15, 250_000, tzinfo=UTC)
FORMATS = ("pandas", "arrow")


def stored(payload: Any) -> bytes:
    return bson.encode({"payload": payload}, codec_options=OPTIONS)


def read(payload: Any) -> Any:
    """Return a payload as it comes from the server."""
    return bson.decode(stored(payload), codec_options=OPTIONS)["payload"]


def items_of(payloads: list[Any], ids: list[Any] | None = None) -> list[Item[Any]]:
    all_ids = ids or [ObjectId() for _ in payloads]
    return [
        Item({"_id": id, "q": "in", "attempts": 2}, payload, NOW, "a.b")
        for id, payload in zip(all_ids, payloads, strict=True)
    ]


class _Queue:
    name = "in"


def run(
    function: Callable[..., Any],
    payloads: list[Any],
    *,
    format: str,
    targets: tuple[str, ...] = ("out",),
    ids: list[Any] | None = None,
) -> Any:
    """Return what a function on frames says of these payloads."""
    handler = FrameHandler(function, format, targets=targets, model=None, takes_job=False)
    return handler(payloads, Job(_Queue(), items_of(payloads, ids), name="stage"))


def payloads_of(entries: Any) -> list[Any]:
    assert all(isinstance(entry, Move) and entry.to == "out" for entry in entries), entries
    return [entry.payload for entry in entries]


def same(frame: Any) -> Any:
    return frame


def anew(frame: Any) -> Any:
    """Return an equal frame, of which nothing is the same object."""
    if isinstance(frame, pandas.DataFrame):
        return pandas.DataFrame({name: frame[name].array.copy() for name in frame.columns})
    return pyarrow.table({name: frame[name].combine_chunks() for name in frame.column_names})


# --- nothing changed -----------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-9, 9).map(Int64),
    st.floats(allow_nan=True),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    st.sampled_from([DatetimeMS(-(2**62)), DatetimeMS(2**62)]),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.decimals(allow_nan=False, places=3, min_value=-(10**9), max_value=10**9).map(Decimal128),
    st.sampled_from(["NaN", "-NaN", "sNaN", "Infinity", "-0", "0E+3", "1E+6000", "9.99E-6100", "1.0", "1.00"]).map(
        Decimal128
    ),
    st.uuids(),
    st.sampled_from([Regex("a.b", "i"), Timestamp(3, 4), Binary(b"x", 9), MaxKey()]),
)
NAMES = st.sampled_from(["a", "b", "c", "payload", "_id", "_to", "__x", "", "a.b", "$set"])
VALUES = st.recursive(
    SCALARS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "_id"]), parts, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # threads that other tests have left do
@pytest.mark.parametrize("function", [same, anew])
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(DOCUMENTS, min_size=1, max_size=4)
    | st.lists(st.lists(VALUES, max_size=2) | SCALARS, min_size=1, max_size=4)
)
@example([{"a": 1}, {"a": None}, {}])
@example([{"b": 1, "a": 2}, {"a": 2, "b": 1}])
@example([{"a": 2**53 + 1}, {"a": 0.5}])
@example([{"a": True}, {"a": 1}])
@example([{"a": Code("x")}, {"a": "x"}])
@example([{"a": Code("x")}, {"b": Code("x")}])
@example([{"a": math.nan}, {"a": None}, {"a": 1.0}])
@example([{"payload": 5}, {}, {"payload": None}])
@example([{"a": {"x": 1}}, {"a": {"y": None}}, {"a": {}}])
@example([{"a": [{"x": ObjectId(b"0" * 12)}]}, {"a": [{}]}])
@example([{"a": "x"}, {"a": 1}, {"a": ObjectId(b"0" * 12)}])
def test_what_is_passed_through_is_the_same_bson(function: Any, format: str, payloads: list[Any]) -> None:
    originals = [read(payload) for payload in payloads]
    entries = run(function, originals, format=format)
    returned = [was if to is KEEP else to for was, to in zip(originals, payloads_of(entries), strict=True)]
    assert [stored(payload) for payload in returned] == [stored(payload) for payload in originals]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_may_come_back_in_any_order(format: str) -> None:
    def backwards(frame: Any) -> Any:
        return frame.iloc[::-1] if format == "pandas" else frame.take(list(range(len(frame)))[::-1])

    payloads = [{"n": n} if n % 2 else {} for n in range(6)]
    assert payloads_of(run(backwards, payloads, format=format)) == payloads


# --- the frame -----------------------------------------------------------------------------------

ROWS = [
    {
        "n": 1,
        "x": 1.5,
        "t": "a",
        "b": True,
        "at": NOW,
        "d": Decimal128("1.10"),
        "id": ObjectId(b"0" * 12),
        "s": {"k": 1},
    },
    {"n": None, "x": 2, "t": None, "b": None, "at": None, "d": Decimal128("10"), "id": None, "s": None},
    {},
]


def test_a_dataframe_has_types_that_know_what_is_missing() -> None:
    frames: list[Any] = []
    run(lambda frame: frames.append(frame), ROWS, format="pandas")
    [frame] = frames
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        "_id": "string",
        "_delivery_hash": "string",
        "_attempts": "Int64",
        "n": "Int64",
        "x": "Float64",
        "t": "string",
        "b": "boolean",
        "at": "datetime64[us, UTC]",
        "d": "object",
        "id": "object",
        "s": "object",
    }
    assert frame["n"].isna().tolist() == [False, True, True]
    assert frame["d"].tolist() == [Decimal("1.10"), Decimal(10), None]
    assert frame["id"].tolist() == [ObjectId(b"0" * 12), None, None]
    assert frame["at"][0] == pandas.Timestamp(NOW)
    assert frame["_attempts"].tolist() == [2, 2, 2]


def test_a_table_has_the_types_of_arrow_and_text_for_what_it_has_none_for() -> None:
    tables: list[Any] = []
    rows = [*ROWS, {"mixed": 1, "l": [1, None], "u": UUID(int=7)}, {"mixed": {"a": ObjectId(b"0" * 12)}, "l": []}]
    run(lambda frame: tables.append(frame), rows, format="arrow")
    [table] = tables
    assert {field.name: str(field.type) for field in table.schema} == {
        "_id": "string",
        "_delivery_hash": "string",
        "_attempts": "int64",
        "n": "int64",
        "x": "double",
        "t": "string",
        "b": "bool",
        "at": "timestamp[us, tz=UTC]",
        "d": "decimal128(4, 2)",
        "id": "string",
        "s": "struct<k: int64>",
        "mixed": "string",
        "l": "list<item: int64>",
        "u": "string",
    }
    assert table["id"][0].as_py() == str(ObjectId(b"0" * 12))
    assert table["mixed"].to_pylist()[3:] == ["1", '{"a":"' + str(ObjectId(b"0" * 12)) + '"}']


@pytest.mark.parametrize("format", FORMATS)
def test_ids_and_hashes_are_those_of_the_items(format: str) -> None:
    frames: list[Any] = []
    ids = [ObjectId(b"0" * 12), "x", 7, str(ObjectId(b"0" * 12))]
    payloads = [1, 2, 3, 4]
    run(lambda frame: frames.append(frame), payloads, format=format, ids=ids)
    job = Job(_Queue(), items_of(payloads, ids), name="stage")
    [frame] = frames
    ids_in_frame = [value if isinstance(value, str) else value.as_py() for value in frame["_id"]]
    assert ids_in_frame == [repr(ids[0]), "x", "7", repr(ids[3])], "each differs from the others"
    hashes = [value if isinstance(value, str) else value.as_py() for value in frame["_delivery_hash"]]
    assert hashes == [job.hash_of(item) for item in job.items]
    assert payloads_of(run(same, payloads, format=format, ids=ids)) == payloads


@pytest.mark.parametrize("format", FORMATS)
def test_a_payload_that_is_no_document_fails_alone_among_documents(format: str) -> None:
    entries = run(same, [{"n": 1}, 7, {"n": 2}, None], format=format)
    assert [entry.payload for entry in entries[::2]] == [{"n": 1}, {"n": 2}]
    assert [type(entry) for entry in entries[1::2]] == [mongoq.PayloadInvalid] * 2
    entries = run(lambda frame: [mongoq.Drop(), mongoq.Dead("no")], [{"n": 1}, 7, {"n": 2}], format=format)
    assert [type(entry).__name__ for entry in entries] == ["Drop", "PayloadInvalid", "Dead"]


# --- what was changed ----------------------------------------------------------------------------

LATER = NOW + timedelta(days=1)
PANDAS_VALUES: dict[str, tuple[Any, Any]] = {
    "numpy int": (pandas.Series([numpy.int32(5)], dtype=object), 5),
    "numpy float": (pandas.Series([numpy.float32(0.5)], dtype=object), 0.5),
    "numpy bool": (pandas.Series([numpy.bool_(True)], dtype=object), True),
    "numpy text": (pandas.Series([numpy.str_("x")], dtype=object), "x"),
    "small ints": (pandas.Series([3], dtype="int8"), 3),
    "unsigned": (pandas.Series([3], dtype="uint64"), 3),
    "float32": (pandas.Series([0.25], dtype="float32"), 0.25),
    "NaN": (pandas.Series([math.nan]), None),
    "infinity": (pandas.Series([math.inf]), math.inf),
    "NaN among objects": (pandas.Series([math.nan], dtype=object), None),
    "NA": (pandas.Series([pandas.NA], dtype="Int64"), None),
    "NA among objects": (pandas.Series([pandas.NA], dtype=object), None),
    "NaT": (pandas.Series([pandas.NaT], dtype="datetime64[ns, UTC]"), None),
    "NaT among objects": (pandas.Series([pandas.NaT], dtype=object), None),
    "category": (pandas.Series(["x"], dtype="category"), "x"),
    "text": (pandas.Series(["x"], dtype="str"), "x"),
    "nanoseconds": (pandas.Series(pandas.to_datetime([LATER.isoformat()])).dt.as_unit("ns"), LATER),
    "another zone": (pandas.Series(pandas.to_datetime([LATER])).dt.tz_convert("Asia/Tokyo"), LATER),
    "timestamp": (pandas.Series([pandas.Timestamp(LATER)], dtype=object), LATER),
    "datetime": (pandas.Series([LATER.astimezone(timezone(timedelta(hours=2)))], dtype=object), LATER),
    "date": (pandas.Series([date(2026, 1, 2)], dtype=object), "2026-01-02"),
    "time": (pandas.Series([time(3, 4)], dtype=object), "03:04:00"),
    "decimal": (pandas.Series([Decimal("1.50")], dtype=object), Decimal128("1.50")),
    "array": (pandas.Series([numpy.array([1, 2])], dtype=object), [1, 2]),
    "array of times": (
        pandas.Series([[numpy.datetime64("2026-01-01", "ns"), pandas.Timestamp(LATER)]], dtype=object).map(
            lambda parts: parts[1:]
        ),
        [LATER],
    ),
    "document": (
        pandas.Series([{"a": numpy.int64(1), "b": [pandas.NA, (1, 2)]}], dtype=object),
        {"a": 1, "b": [None, [1, 2]]},
    ),
    "arrow's": (pandas.Series([1], dtype=pandas.ArrowDtype(pyarrow.int32())), 1),
}


@pytest.mark.parametrize("case", PANDAS_VALUES)
def test_values_of_pandas_become_those_of_bson(case: str) -> None:
    series, expected = PANDAS_VALUES[case]
    [payload] = payloads_of(run(lambda frame: frame.assign(new=series), [{"n": 1}], format="pandas"))
    assert stored(payload) == stored({"n": 1, "new": expected})


ARROW_VALUES: dict[str, tuple[Any, Any]] = {
    "small ints": (pyarrow.array([3], pyarrow.int8()), 3),
    "float32": (pyarrow.array([0.25], pyarrow.float32()), 0.25),
    "NaN": (pyarrow.array([math.nan]), math.nan),
    "null": (pyarrow.array([None], pyarrow.int64()), None),
    "nothing": (pyarrow.nulls(1), None),
    "large text": (pyarrow.array(["x"], pyarrow.large_string()), "x"),
    "view": (pyarrow.array(["x"], pyarrow.string_view()), "x"),
    "dictionary": (pyarrow.array(["x"]).dictionary_encode(), "x"),
    "binary": (pyarrow.array([b"x"], pyarrow.binary(1)), b"x"),
    "date": (pyarrow.array([date(2026, 1, 2)]), "2026-01-02"),
    "time": (pyarrow.array([time(3, 4)], pyarrow.time64("us")), "03:04:00"),
    "nanoseconds": (pyarrow.array([LATER], pyarrow.timestamp("ns", tz="UTC")), LATER),
    "seconds elsewhere": (
        pyarrow.array([LATER], pyarrow.timestamp("s", tz="Asia/Tokyo")),
        LATER.replace(microsecond=0),
    ),
    "year 20000": (
        pyarrow.array([18_000 * 31_556_952], pyarrow.timestamp("s", tz="UTC")),
        DatetimeMS(18_000 * 31_556_952_000),
    ),
    "decimal": (pyarrow.array([Decimal("1.50")], pyarrow.decimal128(5, 3)), Decimal128("1.500")),
    "list": (pyarrow.array([[1, None]]), [1, None]),
    "struct": (pyarrow.array([{"a": 1, "b": None}]), {"a": 1, "b": None}),
    "map": (pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())), {"a": 1}),
    "struct of a map": (
        pyarrow.array([{"m": []}], pyarrow.struct([("m", pyarrow.map_(pyarrow.string(), pyarrow.int64()))])),
        {"m": {}},
    ),
}


@pytest.mark.parametrize("case", ARROW_VALUES)
def test_values_of_arrow_become_those_of_bson(case: str) -> None:
    array, expected = ARROW_VALUES[case]
    [payload] = payloads_of(run(lambda table: table.append_column("new", array), [{"n": 1}], format="arrow"))
    assert stored(payload) == stored({"n": 1, "new": expected})


def changed(format: str, frame: Any, name: str, values: list[Any]) -> Any:
    if format == "pandas":
        return frame.assign(**{name: values})
    return frame.set_column(frame.column_names.index(name), name, pyarrow.array(values))


@pytest.mark.parametrize("format", FORMATS)
def test_a_change_counts_and_an_equal_number_is_none(format: str) -> None:
    payloads = [{"n": 1, "o": 1}, {"n": 2, "o": 2}, {"n": True, "o": 3}, {"o": 4}]
    payloads = [read(payload) for payload in payloads]
    payloads_out = payloads_of(
        run(lambda frame: changed(format, frame, "o", [1.0, 2.5, 4.0, None]), payloads, format=format)
    )
    assert [stored(payload) for payload in payloads_out] == [
        stored(payload) for payload in ({"n": 1, "o": 1}, {"n": 2, "o": 2.5}, {"n": True, "o": 4.0}, {"o": None})
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_a_null_is_stored_but_where_the_item_had_no_such_field(format: str) -> None:
    payloads = [{"n": 1, "o": 5}, {"n": 2}]
    payloads_out = payloads_of(run(lambda frame: changed(format, frame, "o", [None, None]), payloads, format=format))
    assert payloads_out == [{"n": 1, "o": None}, {"n": 2}]


def test_a_document_that_was_changed_in_its_place_is_stored_as_it_is() -> None:
    def change(frame: pandas.DataFrame) -> pandas.DataFrame:
        for part in frame["d"]:
            part["k"] = numpy.int64(part["k"] + 1)
        return frame

    assert payloads_of(run(change, [{"d": {"k": 1}}, {"d": {"k": 2}}], format="pandas")) == [
        {"d": {"k": 2}},
        {"d": {"k": 3}},
    ]


def test_columns_of_fields_that_begin_with_an_underscore_have_one_more() -> None:
    columns: list[Any] = []

    def look(frame: pandas.DataFrame) -> pandas.DataFrame:
        columns.append(list(frame.columns))
        return frame.assign(__new=frame["__id"] + 1)

    assert payloads_of(run(look, [{"_id": 4, "__x": 5}], format="pandas")) == [{"_id": 4, "__x": 5, "_new": 5}]
    assert columns == [["_id", "_delivery_hash", "_attempts", "__id", "___x"]]


def test_payload_alone_is_the_payload_itself() -> None:
    double: Callable[..., Any] = lambda frame: frame.assign(payload=frame["payload"] * 2)  # noqa: E731
    assert payloads_of(run(double, [1, 2], format="pandas")) == [2, 4]
    assert payloads_of(run(double, [{"payload": 1}], format="pandas")) == [{"payload": 2}], "it has such a field"
    only: Callable[..., Any] = lambda frame: frame[["_id"]].assign(payload=frame["n"])  # noqa: E731
    assert payloads_of(run(only, [{"n": 1}], format="pandas")) == [1]
    assign: Callable[..., Any] = lambda frame: frame.assign(n=1)  # noqa: E731
    assert payloads_of(run(assign, [7], format="pandas")) == [{"payload": 7, "n": 1}]


# --- outcomes ------------------------------------------------------------------------------------


def frame_of(format: str, rows: list[dict[str, Any]]) -> Any:
    return pandas.DataFrame(rows) if format == "pandas" else pyarrow.Table.from_pylist(rows)


def ids_of(frame: Any) -> list[str]:
    return frame["_id"].tolist() if isinstance(frame, pandas.DataFrame) else frame["_id"].to_pylist()  # type: ignore[no-any-return]


def answers(format: str, *rows: dict[str, Any], columns: tuple[str, ...] = (), **options: Any) -> Any:
    """Return what becomes of three items: each row is of the item whose number stands in ``_id``."""

    def answer(frame: Any) -> Any:
        ids = ids_of(frame)
        returned_rows = [{**dict.fromkeys(columns), **row, "_id": ids[row["_id"]]} for row in rows]
        return frame_of(format, returned_rows)

    return run(answer, [{"n": 0}, {"n": 1}, {"n": 2}], format=format, **options)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_say_what_becomes_of_items(format: str) -> None:
    entries = answers(
        format,
        {"_id": 2, "_to": "b", "n": 5},
        {"_id": 0, "_to": "a", "n": 1},
        {"_id": 0, "_to": "b", "n": 2},
        columns=("_to", "n"),
        targets=("a", "b"),
    )
    assert [type(entry) for entry in entries] == [Fork, Drop, Move]
    assert [(move.to, move.payload) for move in entries[0].moves] == [("a", {"n": 1}), ("b", {"n": 2})]
    assert (entries[2].to, entries[2].payload) == ("b", {"n": 5})


@pytest.mark.parametrize("format", FORMATS)
def test_rows_tell_of_failures(format: str) -> None:
    entries = answers(
        format,
        {"_id": 0, "_retry": "closed"},
        {"_id": 1, "_dead": "no such flight"},
        {"_id": 2, "n": 9},
        columns=("_retry", "_dead", "n"),
    )
    assert entries[:2] == [mongoq.Retry(error="closed"), mongoq.Dead("no such flight")]
    assert entries[2].payload == {"n": 9}
    entries = answers(format, {"_id": 0, "_retry": "x"}, {"_id": 1}, columns=("_retry",), targets=())
    assert entries == [mongoq.Retry(error="x"), None, None], "in a sink, whoever has no row is done"


@pytest.mark.parametrize("format", FORMATS)
def test_without_columns_of_a_payload_items_keep_their_own(format: str) -> None:
    entries = answers(format, {"_id": 0}, {"_id": 1}, {"_id": 1})
    assert isinstance(entries[0], Move)
    assert entries[0].payload is KEEP
    assert isinstance(entries[1], Fork)


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows_at_all_drop_all(format: str) -> None:
    def none(frame: Any) -> Any:
        return frame.iloc[:0] if format == "pandas" else frame.slice(0, 0)

    assert run(none, [{"n": 1}, {"n": 2}], format=format) == [Drop(), Drop()]


def test_a_list_and_none_are_returned_as_from_any_batch() -> None:
    outcomes = [mongoq.Drop(), {"n": 1}, KeyError("x")]
    assert run(lambda frame: outcomes, [1, 2, 3], format="pandas") == outcomes
    assert run(lambda frame: None, [1, 2], format="pandas") == [None, None]


# --- wrong returns -------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no _id": (lambda frame: frame[["n"]], "no column '_id'.*reset_index"),
    "_id in the index": (lambda frame: frame.set_index("_id"), "no column '_id'.*reset_index"),
    "unknown _id": (lambda frame: frame.assign(_id="elsewhere"), "'elsewhere' in '_id', which is no item of the batch"),
    "null _id": (lambda frame: frame.assign(_id=None), "None in '_id', which is no item"),
    "list in _id": (lambda frame: frame.assign(_id=[[1]] * len(frame)), r"\[1\] in '_id'"),
    "unknown column": (lambda frame: frame.assign(_too="x"), "column '_too'.*'__too' for a field '_too'"),
    "number for a name": (lambda frame: frame.assign(x=1).rename(columns={"x": 5}), "named 5; rename"),
    "two of a name": (lambda frame: frame.assign(m=1).rename(columns={"m": "n"}), "two columns 'n'"),
    "a dict": (lambda frame: {"n": 1}, "got a dict; return a pandas.DataFrame, a list"),
    "a series": (lambda frame: frame["n"], "got a Series; return"),
    "another kind": (lambda frame: pyarrow.table({"_id": ["x"]}), "got a Table; return a pandas.DataFrame"),
    "short list": (lambda frame: [None], "2 items got 1 outcomes"),
    "an outcome": (lambda frame: mongoq.Drop(), "got a Drop; return"),
    "a class": (lambda frame: mongoq.Drop, "the class Drop was returned"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_leaves_open_what_was_meant_fails_the_batch(case: str) -> None:
    function, message = WRONG[case]
    with pytest.raises(mongoq.OutcomeInvalid, match=message):
        run(function, [{"n": 1}, {"n": 2}], format="pandas")


async def test_a_coroutine_that_is_not_awaited_is_reported() -> None:
    async def late(frame: Any) -> Any:
        return frame

    with pytest.raises(mongoq.OutcomeInvalid, match="nobody awaits it"):
        run(lambda frame: late(frame), [1], format="pandas")


def test_a_table_that_python_cannot_read_is_reported() -> None:
    def doubled(table: pyarrow.Table) -> pyarrow.Table:
        kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
        return table.append_column("m", pyarrow.array([[("a", 1), ("a", 2)]], kind))

    with pytest.raises(mongoq.OutcomeInvalid, match="holds what Python cannot read"):
        run(doubled, [{"n": 1}], format="arrow")


ALONE: dict[str, tuple[list[dict[str, Any]], str, tuple[str, ...]]] = {
    "retry and rows": ([{"_id": 0, "_retry": "x"}, {"_id": 0}], "its item has 2 rows", ("out",)),
    "rows and dead": ([{"_id": 0}, {"_id": 0, "_dead": "x"}], "its item has 2 rows", ("out",)),
    "retry and dead": ([{"_id": 0, "_retry": "x", "_dead": "y"}], "both _retry and _dead", ("out",)),
    "retry no text": ([{"_id": 0, "_retry": 5}], "_retry is of type float; it is a text, or null", ("out",)),
    "no target": ([{"_id": 0}], r"no _to, and there are several targets \('a', 'b'\)", ("a", "b")),
    "target no text": ([{"_id": 0, "_to": 5}], "_to is of type int", ("a", "b")),
    "target of a sink": ([{"_id": 0, "_to": "a"}], "_to='a', and items end here", ()),
    "long reason": ([{"_id": 0, "_dead": "x" * 600}], "reason", ("out",)),
}


@pytest.mark.parametrize("case", ALONE)
def test_what_is_wrong_with_one_item_fails_that_one(case: str) -> None:
    rows, message, targets = ALONE[case]
    other_rows = [{"_id": 1, "_to": targets[0] if targets else None}]
    entries = answers("pandas", *rows, *other_rows, columns=("_retry", "_dead", "_to"), targets=targets)
    assert isinstance(entries[0], mongoq.MongoqError)
    with pytest.raises(mongoq.MongoqError, match=message):
        raise entries[0]
    assert [entry is None or isinstance(entry, Outcome) for entry in entries[1:]] == [True, True]


def test_a_handler_can_be_pickled_with_its_function() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    factor = 3

    def times(frame: Any) -> Any:
        return frame.assign(n=frame["n"] * factor)

    for function in (times, partial(times)):
        handler = FrameHandler(function, "pandas", targets=("out",), model=None, takes_job=False)
        again = cloudpickle.loads(cloudpickle.dumps(handler))
        assert payloads_of(again([{"n": 2}], Job(_Queue(), items_of([{"n": 2}]), name="stage"))) == [{"n": 6}]
