"""Filters and patches: a user's operators on payloads, in the form that the server evaluates.

Only operators on a safe list are allowed, and every path stays within the payload. Each value is sent in a form that
the server takes literally: ``{"a": {"b": 1}}`` is equality with a document, a string such as ``$name`` is a string, and
a patch stores a value with keys such as ``$each`` as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bson import Decimal128, Regex

from mongoq.data.encoding.codec import SIZE_LIMIT, Encoding
from mongoq.errors import FilterInvalid, PatchInvalid, PayloadInvalid, PayloadTooLarge

LOGICAL = ("$and", "$or", "$nor")
"""Operators that combine filters."""
COMPARISONS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
LISTS = ("$in", "$nin", "$all")
CONDITIONS = (*COMPARISONS, *LISTS, "$exists", "$type", "$regex", "$options", "$size", "$mod", "$not", "$elemMatch")
"""Operators on one value that a filter may use."""
FILTER_LIMIT = 1024 * 1024
"""Bytes of a filter as BSON, at most: it is sent with every page."""
NESTING_LIMIT = 20
"""Levels of a filter, at most."""
PATTERN_BYTES = 32_764
"""Bytes of a regular expression, at most; the server's limit."""
TYPES = frozenset(
    {
        *("double", "string", "object", "array", "binData", "undefined", "objectId", "bool", "date", "null", "regex"),
        *("dbPointer", "javascript", "symbol", "javascriptWithScope", "int", "timestamp", "long", "decimal"),
        *("minKey", "maxKey", "number", -1, 127, *range(1, 20)),
    }
)
"""Types that ``$type`` accepts, by name or number."""
_LITERAL_HINT = "to compare with a document that has such keys, write {'$eq': {...}}"

CHANGES = ("$set", "$unset", "$inc", "$mul", "$min", "$max", "$push", "$addToSet", "$pullAll", "$pop", "$rename")
"""Operators that a patch may use."""
NULL_BYTES = 12
"""Bytes of one null that the server adds to an array, at most."""


def check_path(path: Any, at: str, invalid: type[FilterInvalid | PatchInvalid]) -> str:
    """Return a path that does not leave the payload; raise ``invalid`` for any other value."""
    if not isinstance(path, str) or not path:
        raise invalid(at, f"a path within the payload is a non-empty string, not {path!r}")
    for step in path.split("."):
        if not step:
            raise invalid(at, f"path {path!r} has an empty step, which would leave the payload")
        if step.startswith("$") or "\0" in step:
            raise invalid(at, f"path {path!r} has a step that the server would not take as a name: {step!r}")
    _utf8(path, at, invalid)
    return path


def _utf8(value: str, at: str, invalid: type[FilterInvalid | PatchInvalid] = FilterInvalid) -> bytes:
    try:
        return value.encode()
    except UnicodeError:
        raise invalid(at, "a string with lone surrogates, which UTF-8 cannot hold") from None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- filters -------------------------------------------------------------------------------------


def where_filter(where: Any, encoding: Encoding) -> dict[str, Any]:
    """Return the filter on envelopes that means the same as ``where`` means on payloads.

    Args:
        where: paths within the payload and conditions on their values, such as
            ``{"customer.name": "Ada", "n": {"$gt": 3}}``, combined with ``$and``, ``$or`` and ``$nor``;
            operators without a path, such as ``{"$gt": 3}``, apply to the payload itself. Paths and operators mean the
            same as in MongoDB.
        encoding: converts values to BSON.

    Raises:
        FilterInvalid: an operator off the safe list, a path that leaves the payload, or a value that cannot be
            compared; the message names where.
    """
    if not isinstance(where, Mapping) or not where:
        raise FilterInvalid("where", "a non-empty document of paths and values such as {'customer': 'Ada'}")
    filter = _Builder(encoding).build_query(where, "where", "payload", 1)
    size = encoding.size(filter)
    if size > FILTER_LIMIT:
        raise FilterInvalid("where", f"{size:,} bytes as BSON, and {FILTER_LIMIT:,} is the limit")
    return filter


class _Builder:
    """Translates the parts of one filter; ``at`` is the place of a part, for errors."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def build_query(self, where: Mapping[Any, Any], at: str, root: str, depth: int) -> dict[str, Any]:
        """Translate paths, logical operators, and operators on the value that the paths start from."""
        _check_depth(at, depth)
        filter: dict[str, Any] = {}
        operators = {key: value for key, value in where.items() if key in CONDITIONS}
        if operators and not root:
            raise FilterInvalid(at, f"{next(iter(operators))!r} needs a path here, or stands alone under $elemMatch")
        if operators:
            filter[root] = self.build_conditions(operators, at, depth)
        for key, value in where.items():
            if key in operators:
                continue
            if not isinstance(key, str) or not key.startswith("$"):
                path, inner = check_path(key, at, FilterInvalid), f"{at}.{key}"
                dollars = [name for name in value if str(name).startswith("$")] if isinstance(value, Mapping) else []
                # The server treats such a document as a literal or refuses it, depending on which key comes first.
                if dollars and len(dollars) < len(value):
                    raise FilterInvalid(inner, f"mixes operators ({dollars[0]!r}) with names; {_LITERAL_HINT}")
                filter[f"{root}.{path}" if root else path] = (
                    self.build_conditions(value, inner, depth) if dollars else {"$eq": self.build_literal(value, inner)}
                )
                continue
            if key not in LOGICAL:
                raise FilterInvalid(at, f"{key!r} is not one of {', '.join((*LOGICAL, *CONDITIONS))}")
            if not isinstance(value, list | tuple) or not value:
                raise FilterInvalid(f"{at}.{key}", "a non-empty list of filters")
            filter[key] = branches = []
            for place, part in enumerate(value):
                if not isinstance(part, Mapping) or not part:
                    raise FilterInvalid(f"{at}.{key}[{place}]", f"a non-empty filter, not {part!r}")
                branches.append(self.build_query(part, f"{at}.{key}[{place}]", root, depth + 1))
        return filter

    def build_conditions(self, value: Any, at: str, depth: int) -> dict[str, Any]:
        """Translate a document that consists of operators on one value."""
        _check_depth(at, depth)
        if not isinstance(value, Mapping) or not value:
            raise FilterInvalid(at, "a non-empty document of operators such as {'$gt': 3}")
        for operator in value:
            if operator not in CONDITIONS:
                raise FilterInvalid(at, f"{operator!r} is not one of {', '.join(CONDITIONS)}; {_LITERAL_HINT}")
        if "$options" in value and "$regex" not in value:
            raise FilterInvalid(f"{at}.$options", "belongs to a $regex")
        return {name: self.build_operand(name, operand, f"{at}.{name}", depth) for name, operand in value.items()}

    def build_literal(self, value: Any, at: str, *, exact: bool = False) -> Any:
        """Return a value to compare with, in the form to send.

        Only as ``exact`` equality is a pattern a value; elsewhere the server would refuse it, or match by it.
        """
        if isinstance(value, re.Pattern | Regex) and not exact:
            raise FilterInvalid(at, "write {'$regex': 'text', '$options': 'i'} to match a pattern")
        try:
            return self._encoding.encode(at, value, limit=FILTER_LIMIT)
        except PayloadInvalid as invalid:
            raise FilterInvalid(invalid.path, invalid.problem) from invalid
        except PayloadTooLarge as large:
            raise FilterInvalid(large.argument, large.problem) from large

    def build_operand(self, operator: str, value: Any, at: str, depth: int) -> Any:
        """Check and translate the operand of an operator on one value."""
        if operator in COMPARISONS:
            return self.build_literal(value, at, exact=operator == "$eq")
        if operator in LISTS:
            if not isinstance(value, list | tuple):
                raise FilterInvalid(at, f"a list of values, not {type(value).__name__}")
            for place, part in enumerate(value):
                # The server would evaluate such a document.
                first = next(iter(part), "") if isinstance(part, Mapping) else ""
                if isinstance(first, str) and first.startswith("$"):
                    problem = f"begins with {first!r}; {_LITERAL_HINT}, joined by $or or $and"
                    raise FilterInvalid(f"{at}[{place}]", problem)
            return [self.build_literal(part, f"{at}[{place}]") for place, part in enumerate(value)]
        if operator == "$not":
            return self.build_conditions(value, at, depth + 1)
        if operator == "$elemMatch":
            if not isinstance(value, Mapping) or not value:
                raise FilterInvalid(at, "a non-empty document: operators on an element, or a filter on its fields")
            if any(key in CONDITIONS for key in value):
                return self.build_conditions(value, at, depth + 1)
            return self.build_query(value, at, "", depth + 1)
        if operator == "$exists" and not isinstance(value, bool):
            raise FilterInvalid(at, f"True or False, not {value!r}")
        if operator == "$size" and not (_is_int(value) and 0 <= value < 2**31):
            raise FilterInvalid(at, f"the length of an array, a whole number from 0 up, not {value!r}")
        if operator == "$options" and (not isinstance(value, str) or set(value) - set("imsx")):
            raise FilterInvalid(at, f"letters out of 'imsx', not {value!r}")
        if operator == "$regex":
            if not isinstance(value, str) or "\0" in value:
                raise FilterInvalid(at, "the text of a regular expression, without NUL")
            size = len(_utf8(value, at))
            if size > PATTERN_BYTES:
                raise FilterInvalid(at, f"{size:,} bytes, and {PATTERN_BYTES:,} is the limit of a regular expression")
        if operator == "$type":
            names = list(value) if isinstance(value, list | tuple) else [value]
            for name in names or [None]:
                if isinstance(name, bool) or not isinstance(name, str | int) or name not in TYPES:
                    raise FilterInvalid(at, f"the name or number of a BSON type, such as 'string', not {name!r}")
            return names
        if operator == "$mod":
            numbers = list(value) if isinstance(value, list | tuple) else []
            whole = all(_is_int(number) and abs(number) < 2**63 for number in numbers)
            if len(numbers) != 2 or not whole or numbers[0] == 0:
                raise FilterInvalid(at, f"two whole numbers, the divisor (not 0) and the remainder, not {value!r}")
            return numbers
        return value


def _check_depth(at: str, depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise FilterInvalid(at, f"nested deeper than {NESTING_LIMIT} levels")


# --- patches -------------------------------------------------------------------------------------


def patch_update(patch: Any, encoding: Encoding) -> dict[str, dict[str, Any]]:
    """Return the update operators of a patch, with every path prefixed by ``payload.``.

    They are applied in the same update that settles the item.

    Args:
        patch: a document of operators such as ``{"$set": {"carrier.name": "Delta"}, "$inc": {"hops": 1}}``.
        encoding: converts values to BSON.

    Raises:
        PatchInvalid: an operator off the safe list, a path that leaves the payload, or an operand of the wrong type.
        PayloadInvalid: a value that BSON cannot give back equal.
    """
    if not isinstance(patch, Mapping) or not patch:
        raise PatchInvalid("patch", "a non-empty document of update operators such as {'$set': {...}}")
    update: dict[str, dict[str, Any]] = {}
    for operator, fields in patch.items():
        if operator not in CHANGES:
            raise PatchInvalid("patch", f"{operator!r} is not one of {', '.join(CHANGES)}")
        if not isinstance(fields, Mapping) or not fields:
            raise PatchInvalid(f"patch.{operator}", "a non-empty document of paths and values")
        operands: dict[str, Any] = {}
        update[operator] = operands
        for path, value in fields.items():
            target, at = f"payload.{check_path(path, 'patch', PatchInvalid)}", f"patch.{operator}.{path}"
            is_number = isinstance(value, int | float | Decimal128) and not isinstance(value, bool)
            if operator == "$unset":
                operands[target] = ""
                continue
            if operator == "$rename":
                operands[target] = f"payload.{check_path(value, at, PatchInvalid)}"
                continue
            if operator == "$pop" and not (is_number and value in (1, -1)):
                raise PatchInvalid(at, f"1 takes the last element and -1 the first, not {value!r}")
            if operator == "$pullAll" and not isinstance(value, list | tuple):
                raise PatchInvalid(at, "a list of the values to remove")
            if operator in ("$inc", "$mul") and not is_number:
                raise PatchInvalid(at, f"a number, not {type(value).__name__}")
            literal = encoding.encode(at, value, limit=SIZE_LIMIT)
            # With ``$each`` the server appends the value literally.
            operands[target] = {"$each": [literal]} if operator in ("$push", "$addToSet") else literal
    return update


def padding(update: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the bytes that the server may add by itself: it fills an array up to an index that is set."""
    steps = [step for fields in update.values() for path in fields for step in path.split(".")]
    return sum(NULL_BYTES * int(step) for step in steps if step.isdecimal() and len(step) < 10)
