"""What only the Spark side raises."""

from __future__ import annotations

from typing import Any

from mongoq.errors import MongoqError

__all__ = ["ColumnMismatch", "SparkUnavailable"]

INSTALL = "install the extra mongoq-driver[spark] (pip install '.[spark]' in a checkout)"


class SparkUnavailable(MongoqError, ImportError):
    """Something that Spark needs is not there, or is too old.

    Attributes:
        missing: what it is: ``pyspark``, ``pyarrow`` or ``Java``.
        problem: what is wrong with it.
    """

    def __init__(self, missing: str, problem: str = "is not installed", remedy: str = INSTALL) -> None:
        super().__init__(f"{missing} {problem}: {remedy}")
        self.missing = missing
        self.problem = problem


class ColumnMismatch(MongoqError, ValueError):
    """A stored value that its column cannot hold without loss. The task fails; nothing becomes null silently.

    Spark hands on the text of an error, not the object. The value is not quoted, since it may be private.

    Attributes:
        item_id: the item that holds the value.
        column: the column, with the path below it, such as ``lines[2].price``.
        type: the Spark type of the column there.
        problem: what the value is instead.
    """

    def __init__(self, item_id: Any, column: str, type: str, problem: str) -> None:
        super().__init__(
            f"item {item_id}: column {column!r} of type {type} cannot hold {problem}; "
            f"give the column another type, read the column 'payload' as a string, or choose another mode"
        )
        self.item_id = item_id
        self.column = column
        self.type = type
        self.problem = problem
