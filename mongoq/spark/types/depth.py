"""Limit of the nesting of column types."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

__all__ = ["too_deep"]

ARROW_LEVELS = 64
OF_SPARK = 2
"""Levels above a column: Spark sends each batch as a struct, and the values inside have one level."""
COLUMN_LEVELS = ARROW_LEVELS - OF_SPARK
MAP_LEVELS = 2
"""Levels of a map: Arrow stores it as a list of structs."""


def too_deep(name: str, type: DataType) -> str | None:
    """Return which part of a column nests too deep for Arrow, if any, as a sentence; a string can replace this part."""
    path = next(_beyond(name, type, 0), None)
    if path is None:
        return None
    return f"{path!r} nests deeper than the {COLUMN_LEVELS} levels that Arrow brings from Python to Spark and back"


def _beyond(path: str, type: DataType, above: int) -> Iterator[str]:
    """Yield the paths of the outermost parts that are too deep."""
    if not isinstance(type, StructType | ArrayType | MapType):
        return
    level = above + (MAP_LEVELS if isinstance(type, MapType) else 1)
    if level > COLUMN_LEVELS:
        yield path
        return
    for inner, part in _parts(path, type):
        yield from _beyond(inner, part, level)


def _parts(path: str, type: StructType | ArrayType | MapType) -> list[tuple[str, DataType]]:
    if isinstance(type, StructType):
        return [(f"{path}.{field.name}", field.dataType) for field in type.fields]
    return [(f"{path}[]", type.elementType if isinstance(type, ArrayType) else type.valueType)]
