"""Payloads as frames and back: what a function leaves alone is stored as it was, to the last byte."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import bson
import hypothesis.strategies as st
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, example, given, settings

import mongoq
from mongoq.testing import VirtualBroker

OPTIONS = CodecOptions[Any](
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
NOW = datetime(2026, 11, 22, 12, 30, 15, 250_000, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
FORMATS = ("pandas", "arrow")


def stored(payload: Any) -> bytes:
    return bson.encode({"payload": payload}, codec_options=OPTIONS)


@dataclass
class Ran:
    """What has become of the items that a function on frames was given, in their order."""

    ids: list[Any]
    items: dict[Any, mongoq.Item[Any]]

    @property
    def payloads(self) -> list[Any]:
        """What has gone on."""
        on = [self.items[id] for id in self.ids if id in self.items]
        return [item.payload for item in on if item.queue != "errors"]

    @property
    def errors(self) -> dict[int, str]:
        """The messages of what has failed, by the places of the items."""
        failed = [(place, self.items.get(id)) for place, id in enumerate(self.ids)]
        return {place: item.error.message for place, item in failed if item and item.error}


def run(
    function: Callable[..., Any],
    payloads: list[Any],
    *,
    format: str,
    to: tuple[str, ...] = ("out",),
    broker: mongoq.Broker | None = None,
) -> Ran:
    """Let a stage run a function on the frame of these payloads: of a virtual broker, or of one with a server."""
    pipeline = mongoq.Pipeline("graph", errors="errors", outputs=to)
    pipeline.batch_stage("raw", to=to, name="work", format=format, max_retries=0)(function)  # type: ignore[arg-type]
    if broker is None:
        with VirtualBroker() as virtual:
            ids = virtual.queue("raw").push_many(payloads)
            virtual.worker(pipeline).run_until_idle()
            return Ran(ids, found(virtual, to))
    ids = broker.queue("raw").push_many(payloads)
    pipeline.drain(broker)
    return Ran(ids, found(broker, to))


def found(broker: mongoq.Broker, queues: tuple[str, ...]) -> dict[Any, mongoq.Item[Any]]:
    """Return what is in queues and among the errors, by its id."""
    return {item.id: item for name in (*queues, "errors") for item in broker.queue(name).peek(100)}


def same(frame: Any) -> Any:
    return frame


def anew(frame: Any) -> Any:
    """Return an equal frame, of which nothing is the same object."""
    if hasattr(frame, "column_names"):
        import pyarrow

        return pyarrow.table({name: frame[name].combine_chunks() for name in frame.column_names})
    import pandas

    return pandas.DataFrame({name: frame[name].array.copy() for name in frame.columns})


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
    st.sampled_from(["NaN", "-NaN", "sNaN", "Infinity", "-0", "0E+3", "1E+6000", "9.99E-6100", "1.0", "1.00"]).map(
        Decimal128
    ),
    st.sampled_from([Regex("a.b", "i"), Timestamp(3, 4), Binary(b"x", 9), MaxKey()]),
)
NAMES = st.sampled_from(["a", "b", "payload", "_id", "_to", "__x", "", "a.b", "$set"])
VALUES = st.recursive(
    SCALARS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "_id"]), parts, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # threads that other tests have left do
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(DOCUMENTS, min_size=1, max_size=4)
    | st.lists(st.lists(VALUES, max_size=2) | SCALARS, min_size=1, max_size=4)
)
@example([{"a": 1}, {"a": None}, {}])
@example([{"b": 1, "a": 2}, {"a": 2, "b": 1}])
@example([{"a": 2**53 + 1}, {"a": 0.5}])
@example([{"a": True}, {"a": 1}])
@example([{"a": Code("x")}, {"a": "x"}])
@example([{"a": math.nan}, {"a": None}, {"a": 1.0}])
@example([{"payload": 5}, {}, {"payload": None}])
@example([{"a": {"x": 1}}, {"a": {"y": None}}, {"a": {}}])
@example([{"a": [{"x": ObjectId(b"0" * 12)}]}, {"a": [{}]}])
@example([{"a": "x"}, {"a": 1}, {"a": ObjectId(b"0" * 12)}])
def test_what_is_passed_through_is_the_same_bson(format: str, payloads: list[Any]) -> None:
    for function in (same, anew):
        ran = run(function, payloads, format=format)
        assert ran.errors == {}
        assert [stored(payload) for payload in ran.payloads] == [stored(payload) for payload in payloads]


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_passed_through_a_server_is_the_same_bson(broker: mongoq.Broker, format: str) -> None:
    """The virtual broker has no room for some of these values."""
    payloads: list[Any] = [
        {"a": UUID(int=7), "b": DatetimeMS(-(2**62)), "c": Code("x"), "d": [UUID(int=8), {}], "e": Decimal128("sNaN")},
        {"a": "x", "b": NOW, "c": Regex("a.b", "i"), "d": None, "$set": 1, "a.b": 2, "": 3},
    ]
    ran = run(anew, payloads, format=format, broker=broker)
    assert [stored(payload) for payload in ran.payloads] == [stored(payload) for payload in payloads]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_may_come_back_in_any_order(format: str) -> None:
    def backwards(frame: Any) -> Any:
        return frame.iloc[::-1] if format == "pandas" else frame.take(list(range(len(frame)))[::-1])

    payloads = [{"n": n} if n % 2 else {} for n in range(6)]
    assert run(backwards, payloads, format=format).payloads == payloads


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
    import pandas

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
    assert frame["_attempts"].tolist() == [1, 1, 1]


def test_a_table_has_the_types_of_arrow_and_text_for_what_it_has_none_for(broker: mongoq.Broker) -> None:
    tables: list[Any] = []
    rows = [*ROWS, {"mixed": 1, "l": [1, None], "u": UUID(int=7)}, {"mixed": {"a": ObjectId(b"0" * 12)}, "l": []}]
    run(lambda frame: tables.append(frame), rows, format="arrow", broker=broker)
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
def test_a_payload_that_is_no_document_fails_alone_among_documents(format: str) -> None:
    ran = run(same, [{"n": 1}, 7, {"n": 2}, None], format=format)
    assert ran.payloads == [{"n": 1}, {"n": 2}]
    assert sorted(ran.errors) == [1, 3]


# --- what was changed ----------------------------------------------------------------------------


def test_values_of_pandas_become_those_of_bson() -> None:
    import numpy
    import pandas
    import pyarrow

    Series = pandas.Series  # noqa: N806
    document = {"a": numpy.int64(1), "b": [pandas.NA, (1, 2)]}
    cases: dict[str, tuple[Any, Any]] = {
        "numpy int": (Series([numpy.int32(5)], dtype=object), 5),
        "numpy bool": (Series([numpy.bool_(True)], dtype=object), True),
        "numpy text": (Series([numpy.str_("x")], dtype=object), "x"),
        "unsigned": (Series([3], dtype="uint64"), 3),
        "float32": (Series([0.25], dtype="float32"), 0.25),
        "NaN": (Series([math.nan]), None),
        "infinity": (Series([math.inf]), math.inf),
        "NaN among objects": (Series([math.nan], dtype=object), None),
        "NA": (Series([pandas.NA], dtype="Int64"), None),
        "NaT": (Series([pandas.NaT], dtype="datetime64[ns, UTC]"), None),
        "NaT among objects": (Series([pandas.NaT], dtype=object), None),
        "category": (Series(["x"], dtype="category"), "x"),
        "nanoseconds": (Series(pandas.to_datetime([LATER.isoformat()])).dt.as_unit("ns"), LATER),
        "another zone": (Series(pandas.to_datetime([LATER])).dt.tz_convert("Asia/Tokyo"), LATER),
        "timestamp": (Series([pandas.Timestamp(LATER)], dtype=object), LATER),
        "datetime": (Series([LATER.astimezone(timezone(timedelta(hours=2)))], dtype=object), LATER),
        "date": (Series([date(2026, 1, 2)], dtype=object), "2026-01-02"),
        "time": (Series([time(3, 4)], dtype=object), "03:04:00"),
        "decimal": (Series([Decimal("1.50")], dtype=object), Decimal128("1.50")),
        "array": (Series([numpy.array([1, 2])], dtype=object), [1, 2]),
        "document": (Series([document], dtype=object), {"a": 1, "b": [None, [1, 2]]}),
        "arrow's": (Series([1], dtype=pandas.ArrowDtype(pyarrow.int32())), 1),
    }
    new = {name: series for name, (series, _) in cases.items()}
    ran = run(lambda frame: frame.assign(**new), [{"n": 1}], format="pandas")
    assert ran.errors == {}
    assert ran.payloads == [{"n": 1, **{name: value for name, (_, value) in cases.items()}}]


def test_values_of_arrow_become_those_of_bson() -> None:
    import pyarrow

    array = pyarrow.array
    mapping = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    far = DatetimeMS(18_000 * 31_556_952_000)
    cases: dict[str, tuple[Any, Any]] = {
        "small ints": (array([3], pyarrow.int8()), 3),
        "float32": (array([0.25], pyarrow.float32()), 0.25),
        "null": (array([None], pyarrow.int64()), None),
        "nothing": (pyarrow.nulls(1), None),
        "large text": (array(["x"], pyarrow.large_string()), "x"),
        "view": (array(["x"], pyarrow.string_view()), "x"),
        "dictionary": (array(["x"]).dictionary_encode(), "x"),
        "binary": (array([b"x"], pyarrow.binary(1)), b"x"),
        "date": (array([date(2026, 1, 2)]), "2026-01-02"),
        "time": (array([time(3, 4)], pyarrow.time64("us")), "03:04:00"),
        "nanoseconds": (array([LATER], pyarrow.timestamp("ns", tz="UTC")), LATER),
        "seconds": (array([LATER], pyarrow.timestamp("s", tz="Asia/Tokyo")), LATER.replace(microsecond=0)),
        "year 20000": (array([18_000 * 31_556_952], pyarrow.timestamp("s", tz="UTC")), far),
        "decimal": (array([Decimal("1.50")], pyarrow.decimal128(5, 3)), Decimal128("1.500")),
        "list": (array([[1, None]]), [1, None]),
        "struct": (array([{"a": 1, "b": None}]), {"a": 1, "b": None}),
        "map": (array([[("a", 1)]], mapping), {"a": 1}),
        "struct of a map": (array([{"m": []}], pyarrow.struct([("m", mapping)])), {"m": {}}),
    }

    def extend(table: Any) -> Any:
        for name, (column, _) in cases.items():
            table = table.append_column(name, column)
        return table

    ran = run(extend, [{"n": 1}], format="arrow")
    assert ran.errors == {}
    [payload] = ran.payloads
    assert stored(payload) == stored({"n": 1, **{name: value for name, (_, value) in cases.items()}})


def changed(format: str, frame: Any, name: str, values: list[Any]) -> Any:
    if format == "pandas":
        return frame.assign(**{name: values})
    import pyarrow

    return frame.set_column(frame.column_names.index(name), name, pyarrow.array(values))


@pytest.mark.parametrize("format", FORMATS)
def test_a_change_counts_and_an_equal_number_is_none(format: str) -> None:
    payloads = [{"n": 1, "o": 1}, {"n": 2, "o": 2}, {"n": True, "o": 3}, {"o": 4}]
    ran = run(lambda frame: changed(format, frame, "o", [1.0, 2.5, 4.0, None]), payloads, format=format)
    expected = [{"n": 1, "o": 1}, {"n": 2, "o": 2.5}, {"n": True, "o": 4.0}, {"o": None}]
    assert [stored(payload) for payload in ran.payloads] == [stored(payload) for payload in expected]


@pytest.mark.parametrize("format", FORMATS)
def test_a_null_is_stored_but_where_the_item_had_no_such_field(format: str) -> None:
    payloads = [{"n": 1, "o": 5}, {"n": 2}]
    ran = run(lambda frame: changed(format, frame, "o", [None, None]), payloads, format=format)
    assert ran.payloads == [{"n": 1, "o": None}, {"n": 2}]


def test_a_document_that_was_changed_in_its_place_is_stored_as_it_is() -> None:
    def change(frame: Any) -> Any:
        for part in frame["d"]:
            part["k"] += 1
        return frame

    assert run(change, [{"d": {"k": 1}}, {"d": {"k": 2}}], format="pandas").payloads == [
        {"d": {"k": 2}},
        {"d": {"k": 3}},
    ]


def test_columns_of_fields_that_begin_with_an_underscore_have_one_more() -> None:
    columns: list[Any] = []

    def look(frame: Any) -> Any:
        columns.append(list(frame.columns))
        return frame.assign(__new=frame["__id"] + 1)

    assert run(look, [{"_id": 4, "__x": 5}], format="pandas").payloads == [{"_id": 4, "__x": 5, "_new": 5}]
    assert columns == [["_id", "_delivery_hash", "_attempts", "__id", "___x"]]


def test_payload_alone_is_the_payload_itself() -> None:
    def double(frame: Any) -> Any:
        return frame.assign(payload=frame["payload"] * 2)

    assert run(double, [1, 2], format="pandas").payloads == [2, 4]
    assert run(double, [{"payload": 1}], format="pandas").payloads == [{"payload": 2}], "it has such a field"
    only: Callable[..., Any] = lambda frame: frame[["_id"]].assign(payload=frame["n"])  # noqa: E731
    assert run(only, [{"n": 1}], format="pandas").payloads == [1]
    assert run(lambda frame: frame.assign(n=1), [7], format="pandas").payloads == [{"payload": 7, "n": 1}]


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows_at_all_drop_all(format: str) -> None:
    def none(frame: Any) -> Any:
        return frame.iloc[:0] if format == "pandas" else frame.slice(0, 0)

    assert run(none, [{"n": 1}, {"n": 2}], format=format).items == {}


def test_a_list_is_returned_as_from_any_batch() -> None:
    ran = run(lambda frame: [mongoq.Drop(), {"n": 1}, KeyError("x")], [1, 2, 3], format="pandas")
    assert (ran.payloads, list(ran.errors)) == ([{"n": 1}], [2])


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
    "short list": (lambda frame: [None], "2 items got 1 outcomes"),
    "an outcome": (lambda frame: mongoq.Drop(), "got a Drop; return"),
    "a class": (lambda frame: mongoq.Drop, "the class Drop was returned"),
}


def test_what_leaves_open_what_was_meant_fails_the_batch() -> None:
    for case, (function, message) in WRONG.items():
        ran = run(function, [{"n": 1}, {"n": 2}], format="pandas")
        assert sorted(ran.errors) == [0, 1], case
        assert all(re.search(message, error) for error in ran.errors.values()), (case, ran.errors)


def test_a_table_that_python_cannot_read_is_reported() -> None:
    import pyarrow

    def doubled(table: Any) -> Any:
        kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
        return table.append_column("m", pyarrow.array([[("a", 1), ("a", 2)]], kind))

    assert "holds what Python cannot read" in run(doubled, [{"n": 1}], format="arrow").errors[0]


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


def test_what_is_wrong_with_one_item_fails_that_one() -> None:
    import pandas

    for case, (rows, message, targets) in ALONE.items():
        others = [{"_id": 1, "_to": targets[0] if targets else None}]
        columns = dict.fromkeys(("_retry", "_dead", "_to"))

        def answer(frame: Any, rows: Any = (*rows, *others), columns: Any = columns) -> Any:
            ids = frame["_id"].tolist()
            return pandas.DataFrame([{**columns, **row, "_id": ids[row["_id"]]} for row in rows])

        ran = run(answer, [{"n": 0}, {"n": 1}, {"n": 2}], format="pandas", to=targets)
        assert list(ran.errors) == [0], case
        assert re.search(message, ran.errors[0]), (case, ran.errors)
        assert ran.payloads == ([{"n": 1}] if targets else []), case
