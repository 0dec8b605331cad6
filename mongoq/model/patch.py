"""Patches: a user's update operators, applied under ``payload`` in the same update that settles the item.

Only operators with plain values as operands are allowed. Each operand is sent in a form that the server takes
literally: a value with keys such as ``$each`` is stored, not executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mongoq.errors import PatchInvalid
from mongoq.model.encoding.codec import SIZE_LIMIT, Encoding
from mongoq.model.filters import check_path

OPERATORS = ("$set", "$unset", "$inc", "$mul", "$min", "$max", "$push", "$addToSet", "$pullAll", "$pop", "$rename")
"""The safe list: operators that a patch may use."""
_LITERAL_APPEND = ("$push", "$addToSet")
"""Operators that need ``$each`` around a value, so that the server appends it literally."""
_NUMERIC = ("$inc", "$mul")
"""Operators on numbers."""
NULL_BYTES = 12
"""Bytes of one null that the server adds to an array, at most."""


def patch_update(patch: Any, encoding: Encoding) -> dict[str, dict[str, Any]]:
    """Return the update operators of a patch, with every path prefixed by ``payload.``.

    Args:
        patch: a document of operators such as ``{"$set": {"carrier.name": "Delta"}, "$inc": {"hops": 1}}``.
        encoding: converts values to BSON.

    Raises:
        PatchInvalid: an operator off the safe list, a path that leaves the payload, or an operand of the wrong type.
        PayloadInvalid: a value that BSON cannot give back equal.
    """
    if not isinstance(patch, Mapping) or not patch:
        raise PatchInvalid("patch", "a non-empty document of update operators such as {'$set': {...}}")
    update = {}
    for operator, fields in patch.items():
        if operator not in OPERATORS:
            raise PatchInvalid("patch", f"{operator!r} is not one of {', '.join(OPERATORS)}")
        if not isinstance(fields, Mapping) or not fields:
            raise PatchInvalid(f"patch.{operator}", "a non-empty document of paths and values")
        update[operator] = {
            _path(path, "patch"): _operand(operator, value, f"patch.{operator}.{path}", encoding)
            for path, value in fields.items()
        }
    return update


def padding(update: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the bytes that the server may add by itself: it fills an array up to an index that is set."""
    steps = [step for fields in update.values() for path in fields for step in path.split(".")]
    return sum(NULL_BYTES * int(step) for step in steps if step.isdecimal() and len(step) < 10)


def _path(path: Any, argument: str) -> str:
    return f"payload.{check_path(path, argument, PatchInvalid)}"


def _operand(operator: str, value: Any, where: str, encoding: Encoding) -> Any:
    if operator == "$unset":
        return ""
    if operator == "$rename":
        return _path(value, where)
    if operator == "$pop" and not (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) == 1):
        raise PatchInvalid(where, f"1 takes the last element and -1 the first, not {value!r}")
    if operator == "$pullAll" and not isinstance(value, list | tuple):
        raise PatchInvalid(where, "a list of the values to remove")
    if operator in _NUMERIC and not _is_number(value):
        raise PatchInvalid(where, f"a number, not {type(value).__name__}")
    literal = encoding.encode(where, value, limit=SIZE_LIMIT)
    return {"$each": [literal]} if operator in _LITERAL_APPEND else literal


def _is_number(value: Any) -> bool:
    numeric = isinstance(value, int | float) or type(value).__name__ == "Decimal128"
    return numeric and not isinstance(value, bool)
