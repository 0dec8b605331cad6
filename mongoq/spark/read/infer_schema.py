"""Inferred schema of a table that has no schema, from a sample of its items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import StringType, StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.read.views import Branch, items_of, view_of
from mongoq.spark.scan import Scan
from mongoq.spark.types.column import NO_PAYLOAD, only, path_in_payload
from mongoq.spark.types.conversion_error import PERMISSIVE
from mongoq.spark.types.convert import too_deep
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, default_schema, envelope_schema
from mongoq.spark.types.infer_types import MOST_FIELDS, ObservedValues, alike

__all__ = ["infer_schema"]

RESERVED = {name.lower() for name in (*ENVELOPE, PAYLOAD, CORRUPT, "")}


def infer_schema(scan: Scan, options: ReadOptions) -> StructType:
    """Return the envelope's columns, and a column for each field that the payloads of a sample have.

    A field goes into the column ``payload``, a struct, if its name is that of another column, or differs from another
    field's name only in case. If a payload is no document, ``payload`` holds each payload as JSON.

    Raises:
        ArgumentInvalid: the payloads have more fields than a table should have columns, or nest deeper than a column
            can; or the option ``fields`` is given and a payload has no fields.
    """
    seen = ObservedValues()
    for payload in _payloads(scan, options):
        seen.add("no document" if payload is NO_PAYLOAD or payload is None else payload)
    if len(seen.fields) > MOST_FIELDS:
        raise ArgumentInvalid(
            "inferSchema", f"the payloads have more than {MOST_FIELDS:,} different fields; give a schema, or fields"
        )
    schema = _of_documents(seen) if seen.kinds == {"document"} else _of_others(seen, options)
    _check_depth(schema)
    return schema.add(CORRUPT, StringType()) if options.mode == PERMISSIVE else schema


def _check_depth(schema: StructType) -> None:
    for field in schema.fields:
        if problem := too_deep(field.name, field.dataType):
            hint = f"give a schema in which it, or {field.name!r}, is a string, which holds it as JSON"
            raise ArgumentInvalid("inferSchema", f"field {problem}; {hint}")


def _of_others(seen: ObservedValues, options: ReadOptions) -> StructType:
    if seen.kinds and options.fields:
        raise ArgumentInvalid("fields", "an item's payload is no document, and has no fields; leave out this option")
    return default_schema()


def _of_documents(seen: ObservedValues) -> StructType:
    names = list(seen.fields)
    doubles = alike(names)
    schema, others = envelope_schema(), ObservedValues()
    for name in names:
        if name.lower() in RESERVED or name in doubles:
            others.kinds.add("document")
            others.fields[name] = seen.fields[name]
        else:
            schema.add(seen.fields[name].column(name))
    if others.kinds:
        schema.add(PAYLOAD, others.type() or StringType())
    return schema if seen.fields else default_schema()


def _payloads(scan: Scan, options: ReadOptions) -> Iterator[Any]:
    """Yield the payloads of a sample: the first and the last items of each queue, in the order of its index.

    So the cost is that of the sample, each call has the same result, and old as well as new items are in it.
    """
    view = view_of(options.view, options.queues, options.period, scan.now())
    named = options.queues.names_of(dead=options.view == "dead") or items_of(scan, view.branches[0].queues)
    # With too many queues for the sample, some queues with two items each, instead of one item of each.
    queues = _some(named, options.sample or 0)
    rows = max(2, (options.sample or 0) // max(1, len(queues) * len(view.branches)))
    # Both ends of each index: old and new items may have different fields.
    for branch in view.branches:
        for queue in queues:
            for document in scan.ends(_of(branch, queue), _projection(options.fields), branch.index.keys, rows=rows):
                payload = document.get(PAYLOAD, NO_PAYLOAD)
                yield only(options.fields, payload) if options.fields else payload


def _of(branch: Branch, queue: str) -> dict[str, Any]:
    return {**branch.documents(), "q": queue}


def _some(queues: list[str], sample: int) -> list[str]:
    """Return queues, evenly spread, so that the sample can hold two items of each."""
    most = max(1, sample // 2)
    return queues if len(queues) <= most else [queues[place * len(queues) // most] for place in range(most)]


def _projection(fields: tuple[str, ...]) -> dict[str, int]:
    paths = {path_in_payload(name) or PAYLOAD for name in fields or ("",)}
    return dict.fromkeys({PAYLOAD} if PAYLOAD in paths else paths, 1)
