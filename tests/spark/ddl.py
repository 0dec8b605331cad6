"""Schemas of a few words, without a session: ``schema_of("n int, tags array<string>")``."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["schema_of"]

TOKEN = re.compile(r"`(?:[^`]|``)*`|\w+|[<>:,()]")


def schema_of(ddl: str) -> Any:
    """Return the ``StructType`` of a schema in DDL, which Spark itself reads in its JVM only."""
    tokens = TOKEN.findall(ddl)
    fields = _fields(tokens, end=None)
    assert not tokens, tokens
    return fields


def _fields(tokens: list[str], end: str | None) -> Any:
    from pyspark.sql.types import StructType

    struct = StructType()
    while tokens and tokens[0] != end:
        name = tokens.pop(0)
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if tokens[0] == ":":
            tokens.pop(0)
        type = _type(tokens)
        nullable = [word.upper() for word in tokens[:2]] != ["NOT", "NULL"]
        if not nullable:
            del tokens[:2]
        struct.add(name, type, nullable=nullable)
        if tokens and tokens[0] == ",":
            tokens.pop(0)
    return struct


def _type(tokens: list[str]) -> Any:
    from pyspark.sql import types

    name = tokens.pop(0).lower()
    plain = {
        "string": types.StringType, "boolean": types.BooleanType, "byte": types.ByteType, "tinyint": types.ByteType,
        "short": types.ShortType, "smallint": types.ShortType, "int": types.IntegerType, "long": types.LongType,
        "bigint": types.LongType, "float": types.FloatType, "double": types.DoubleType, "date": types.DateType,
        "timestamp": types.TimestampType, "timestamp_ntz": types.TimestampNTZType, "binary": types.BinaryType,
        "variant": types.VariantType, "void": types.NullType,
    }  # fmt: skip
    if name in plain:
        return plain[name]()
    if name == "interval":
        del tokens[:3]  # day to second
        return types.DayTimeIntervalType()
    opened = tokens.pop(0)
    if name == "decimal":
        precision, _, scale = (tokens.pop(0) for _ in range(3))
        result: Any = types.DecimalType(int(precision), int(scale))
    elif name == "array":
        result = types.ArrayType(_type(tokens))
    elif name == "map":
        key = _type(tokens)
        tokens.pop(0)
        result = types.MapType(key, _type(tokens))
    else:
        assert name == "struct", name
        result = _fields(tokens, end=">")
    assert (opened, tokens.pop(0)) in (("(", ")"), ("<", ">"))
    return result
