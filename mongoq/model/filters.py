"""Filters: a user's conditions on payloads, as a filter that the server evaluates.

Only operators on a safe list are allowed, and every path stays within the payload. Each value is sent in a form that
the server takes literally: ``{"a": {"b": 1}}`` is equality with a document, and a string such as ``$name`` is a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bson import Regex

from mongoq.errors import FilterInvalid, PatchInvalid, PayloadInvalid, PayloadTooLarge
from mongoq.model.encoding.codec import Encoding

LOGICAL = ("$and", "$or", "$nor")
"""Operators that combine filters."""
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
_PATTERN_HINT = "write {'$regex': 'text', '$options': 'i'} to match a pattern"


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
    filter = _Builder(encoding).query(where, "where", "payload", 1)
    size = encoding.size(filter)
    if size > FILTER_LIMIT:
        raise FilterInvalid("where", f"{size:,} bytes as BSON, and {FILTER_LIMIT:,} is the limit")
    return filter


class _Builder:
    """Translates the parts of one filter; ``at`` is the place of a part, for errors."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def query(self, where: Mapping[Any, Any], at: str, root: str, depth: int) -> dict[str, Any]:
        """Translate paths, logical operators, and operators on the value that the paths start from."""
        _check_depth(at, depth)
        filter: dict[str, Any] = {}
        operators = {key: value for key, value in where.items() if isinstance(key, str) and key in OPERATORS}
        if operators and not root:
            raise FilterInvalid(at, f"{next(iter(operators))!r} needs a path here, or stands alone under $elemMatch")
        if operators:
            filter[root] = self.operators(operators, at, depth)
        for key, value in where.items():
            if key in operators:
                continue
            if isinstance(key, str) and key.startswith("$"):
                filter[key] = self._branches(key, value, at, root, depth)
            else:
                path = check_path(key, at, FilterInvalid)
                filter[f"{root}.{path}" if root else path] = self.condition(value, f"{at}.{key}", depth)
        return filter

    def _branches(self, key: str, value: Any, at: str, root: str, depth: int) -> list[dict[str, Any]]:
        if key not in LOGICAL:
            raise FilterInvalid(at, f"{key!r} is not one of {', '.join((*LOGICAL, *OPERATORS))}")
        place = f"{at}.{key}"
        if not isinstance(value, list | tuple) or not value:
            raise FilterInvalid(place, "a non-empty list of filters")
        return [self._branch(part, f"{place}[{n}]", root, depth + 1) for n, part in enumerate(value)]

    def _branch(self, part: Any, at: str, root: str, depth: int) -> dict[str, Any]:
        if not isinstance(part, Mapping) or not part:
            raise FilterInvalid(at, f"a non-empty filter, not {part!r}")
        return self.query(part, at, root, depth)

    def condition(self, value: Any, at: str, depth: int) -> dict[str, Any]:
        """Translate the condition on a path: operators, or a value for equality."""
        if not isinstance(value, Mapping):
            if isinstance(value, re.Pattern | Regex):
                raise FilterInvalid(at, _PATTERN_HINT)
            return {"$eq": self.literal(value, at)}
        dollars = [key for key in value if isinstance(key, str) and key.startswith("$")]
        if not dollars:
            return {"$eq": self.literal(value, at)}
        # The server treats such a document as a literal or refuses it, depending on which key comes first.
        if len(dollars) < len(value):
            raise FilterInvalid(at, f"mixes operators ({dollars[0]!r}) with names; {_LITERAL_HINT}")
        return self.operators(value, at, depth)

    def operators(self, value: Any, at: str, depth: int) -> dict[str, Any]:
        """Translate a document that consists of operators on one value."""
        _check_depth(at, depth)
        if not isinstance(value, Mapping) or not value:
            raise FilterInvalid(at, "a non-empty document of operators such as {'$gt': 3}")
        for operator in value:
            if operator not in OPERATORS:
                raise FilterInvalid(at, f"{operator!r} is not one of {', '.join(OPERATORS)}; {_LITERAL_HINT}")
        if "$options" in value and "$regex" not in value:
            raise FilterInvalid(f"{at}.$options", "belongs to a $regex")
        return {name: OPERATORS[name](self, operand, f"{at}.{name}", depth) for name, operand in value.items()}

    def literal(self, value: Any, at: str) -> Any:
        """Return a value to compare with, in the form to send."""
        try:
            return self._encoding.encode(at, value, limit=FILTER_LIMIT)
        except PayloadInvalid as invalid:
            raise FilterInvalid(invalid.path, invalid.problem) from invalid
        except PayloadTooLarge as large:
            raise FilterInvalid(large.argument, large.problem) from large

    def build_comparison(self, value: Any, at: str, _depth: int) -> Any:
        """Return the operand of a comparison; refuse a pattern, which the server would refuse or match by."""
        if isinstance(value, re.Pattern | Regex):
            raise FilterInvalid(at, _PATTERN_HINT)
        return self.literal(value, at)

    def build_list(self, value: Any, at: str, depth: int) -> list[Any]:
        """Return a list of values; patterns and documents with ``$`` are refused, because the server evaluates them."""
        if not isinstance(value, list | tuple):
            raise FilterInvalid(at, f"a list of values, not {type(value).__name__}")
        for place, part in enumerate(value):
            first = next(iter(part), "") if isinstance(part, Mapping) else ""
            if isinstance(first, str) and first.startswith("$"):
                raise FilterInvalid(f"{at}[{place}]", f"begins with {first!r}; {_LITERAL_HINT}, joined by $or or $and")
        return [self.build_comparison(part, f"{at}[{place}]", depth) for place, part in enumerate(value)]

    def build_negation(self, value: Any, at: str, depth: int) -> dict[str, Any]:
        return self.operators(value, at, depth + 1)

    def element(self, value: Any, at: str, depth: int) -> dict[str, Any]:
        """Translate the condition on one element of an array: operators on it, or a filter on its fields."""
        if not isinstance(value, Mapping) or not value:
            raise FilterInvalid(at, "a non-empty document: operators on an element, or a filter on its fields")
        if any(isinstance(key, str) and key in OPERATORS for key in value):
            return self.operators(value, at, depth + 1)
        return self.query(value, at, "", depth + 1)


def _check_depth(at: str, depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise FilterInvalid(at, f"nested deeper than {NESTING_LIMIT} levels")


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


def _exists(_builder: _Builder, value: Any, at: str, _depth: int) -> bool:
    if not isinstance(value, bool):
        raise FilterInvalid(at, f"True or False, not {value!r}")
    return value


def _type(_builder: _Builder, value: Any, at: str, _depth: int) -> Any:
    names = value if isinstance(value, list | tuple) else [value]
    for name in names:
        if isinstance(name, bool) or not isinstance(name, str | int) or name not in TYPES:
            raise FilterInvalid(at, f"the name or number of a BSON type, such as 'string', not {name!r}")
    if not names:
        raise FilterInvalid(at, "at least one BSON type, such as 'string'")
    return list(names)


def _pattern(_builder: _Builder, value: Any, at: str, _depth: int) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise FilterInvalid(at, "the text of a regular expression, without NUL")
    size = len(_utf8(value, at))
    if size > PATTERN_BYTES:
        raise FilterInvalid(at, f"{size:,} bytes, and {PATTERN_BYTES:,} is the limit of a regular expression")
    return value


def _options(_builder: _Builder, value: Any, at: str, _depth: int) -> str:
    if not isinstance(value, str) or set(value) - set("imsx"):
        raise FilterInvalid(at, f"letters out of 'imsx', not {value!r}")
    return value


def _size(_builder: _Builder, value: Any, at: str, _depth: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise FilterInvalid(at, f"the length of an array, a whole number from 0 up, not {value!r}")
    return value


def _remainder(_builder: _Builder, value: Any, at: str, _depth: int) -> list[int]:
    numbers = list(value) if isinstance(value, list | tuple) else []
    whole = all(isinstance(n, int) and not isinstance(n, bool) and abs(n) < 2**63 for n in numbers)
    if len(numbers) != 2 or not whole or numbers[0] == 0:
        raise FilterInvalid(at, f"two whole numbers, the divisor (not 0) and the remainder, not {value!r}")
    return numbers


OPERATORS: dict[str, Callable[[_Builder, Any, str, int], Any]] = {
    "$eq": lambda builder, value, at, _depth: builder.literal(value, at),
    **dict.fromkeys(("$ne", "$gt", "$gte", "$lt", "$lte"), _Builder.build_comparison),
    **dict.fromkeys(("$in", "$nin", "$all"), _Builder.build_list),
    "$exists": _exists,
    "$type": _type,
    "$regex": _pattern,
    "$options": _options,
    "$size": _size,
    "$mod": _remainder,
    "$not": _Builder.build_negation,
    "$elemMatch": _Builder.element,
}
"""Operators on one value, each with the function that checks and translates its operand."""
