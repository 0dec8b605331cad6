"""Target of a filter: the stored field behind a column, and the values that the server must leave to Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import DataType, StructType

from mongoq.spark.read.literals import HEX, Kind, Unsuited, kind_of
from mongoq.spark.types.column import stored_path
from mongoq.spark.types.convert import is_json
from mongoq.spark.types.envelope_columns import DELIVERY, ENVELOPE, PAYLOAD

__all__ = ["Condition", "Target", "target_of"]

IDS = {("_id",), ("_token",), ("_settled",), ("_origin", "id")}
COMPUTED = {"_state", "_pushed", "_headers", DELIVERY}
INDEXED = {"_id", "q", "priority"}
DATES = {"history": "processed", "all": ""}
ARRAY = {"$type": "array"}
"""Condition on an array in place of a field: the server compares its elements instead of the field."""

Condition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Stored field behind a column.

    Attributes:
        steps: names of the fields that lead to it.
        kind: comparison that the server uses for it.
        indexed: True if an index of the view holds it, and the field only has values of its own type.
    """

    steps: tuple[str, ...]
    kind: Kind
    indexed: bool

    @property
    def path(self) -> str:
        """Path of the field, as the server writes it."""
        return ".".join(self.steps)

    def left_to_spark(self) -> list[Condition]:
        """Return conditions that match all values which the server does not compare as Spark does."""
        own = [_other_than(*self.kind.types), ARRAY, *self.kind.beside]
        return [*self._above(), *({self.path: condition} for condition in own)]

    def _above(self) -> list[Condition]:
        """Return conditions on the documents around the field: one is no document, or is inside an array."""
        paths = [".".join(self.steps[:end]) for end in range(1, len(self.steps))]
        around = [{path: condition} for path in paths for condition in (_other_than("object"), ARRAY)]
        return [*around, {PAYLOAD: {"$eq": None}}] if self.steps[0] == PAYLOAD else around


def target_of(column: Sequence[str], schema: StructType, view: str) -> Target:
    """Return the stored field behind a column, or behind a field of a struct; raises ``Unsuited`` if there is none.

    Args:
        column: names that lead to it.
        schema: columns of the table.
        view: name of the view.
    """
    name, *within = column
    type = _within(schema, column)
    kind = HEX if (name, *within) in IDS else kind_of(type)
    steps = (*_root(name), *within)
    if kind is None or name in COMPUTED or (steps == (PAYLOAD,) and kind.types == ("string",)):
        raise Unsuited
    if any(stored_path(step) is None for step in steps):
        raise Unsuited
    return Target(steps, kind, len(steps) == 1 and steps[0] in INDEXED | {DATES.get(view, "when")})


def _root(column: str) -> tuple[str, ...]:
    if column in ENVELOPE:
        return ENVELOPE[column].stored
    return (PAYLOAD,) if column == PAYLOAD else (PAYLOAD, column)


def _within(schema: StructType, column: Sequence[str]) -> DataType:
    """Return the type of a column, or of a field of a struct."""
    type: DataType = schema
    for name in column:
        fields = type.fields if isinstance(type, StructType) else []
        field = next((each for each in fields if each.name == name), None)
        if field is None or is_json(field):
            raise Unsuited
        type = field.dataType
    return type


def _other_than(*types: str) -> Condition:
    return {"$exists": True, "$not": {"$type": [*types, "null"]}}
