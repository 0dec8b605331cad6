"""What a filter is about: the stored field behind a column, and what of it the server must leave to Spark."""

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
"""To the server, a condition on a field is one on the elements of an array in its place."""

Condition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A stored field.

    Attributes:
        steps: the fields that lead to it.
        kind: how the server compares it.
        indexed: whether an index of the view holds it, and only values of the type that it should have.
    """

    steps: tuple[str, ...]
    kind: Kind
    indexed: bool

    @property
    def path(self) -> str:
        """The path as the server knows it."""
        return ".".join(self.steps)

    def left_to_spark(self) -> list[Condition]:
        """Return the conditions that all meets which the server does not compare as Spark does."""
        own = [_other_than(*self.kind.types), ARRAY, *self.kind.beside]
        return [*self._above(), *({self.path: condition} for condition in own)]

    def _above(self) -> list[Condition]:
        """Return the conditions on the documents around it: that one is none, or one in an array."""
        paths = [".".join(self.steps[:end]) for end in range(1, len(self.steps))]
        around = [{path: condition} for path in paths for condition in (_other_than("object"), ARRAY)]
        return [*around, {PAYLOAD: {"$eq": None}}] if self.steps[0] == PAYLOAD else around


def target_of(column: Sequence[str], schema: StructType, view: str) -> Target:
    """Return the stored field behind a column, or behind a field of a struct; raises ``Unsuited`` if there is none.

    Args:
        column: the names that lead to it.
        schema: the columns of the table.
        view: the name of the view.
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
