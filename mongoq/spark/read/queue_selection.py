"""Queues of a read: one, several, or all with a common prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import DEAD_SUFFIX, queue_name
from mongoq.spark.raw_options import json_list

__all__ = ["WAYS", "QueueSelection", "beginning_with"]

SURROGATES = range(0xD800, 0xE000)
LAST = 0x10FFFF
WAYS = ("queue", "queues", "prefix")


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """The queues of a read.

    Attributes:
        names: names of the queues; empty if a prefix is given.
        prefix: common beginning of the names; empty if names are given.
    """

    names: tuple[str, ...] = ()
    prefix: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check the options ``queue``, ``queues`` and ``prefix``; exactly one is required.

        Raises:
            ArgumentInvalid: none or several are given, or a list is invalid.
            QueueNameInvalid: no queue can have this name.
        """
        given = [way for way in WAYS if options.get(way) is not None]
        if not given:
            problem = "this option is missing: the name of the queue to read; or give queues, or prefix"
            raise ArgumentInvalid("queue", problem)
        if len(given) > 1:
            raise ArgumentInvalid(given[1], f"{' and '.join(given)} say both what to read; give one of them")
        [way] = given
        if way == "queue":
            return cls((queue_name(options[way]),))
        if way == "queues":
            return cls(_parse_names(options[way]))
        if not options[way]:
            raise ArgumentInvalid("prefix", "this option is empty")
        return cls(prefix=queue_name(options[way], "prefix"))

    def __repr__(self) -> str:
        return f"prefix {self.prefix!r}" if self.prefix else ", ".join(map(repr, self.names))

    def names_of(self, *, dead: bool) -> list[str]:
        """Return the names of the queues themselves, or of their dead queues; empty if a prefix is given."""
        return sorted({_dead(name) if dead else name for name in self.names})

    def condition(self, *, dead: bool) -> Any:
        """Return the condition on the names: of the queues themselves, or of their dead queues.

        A prefix includes dead queues only with ``dead``.
        """
        if self.prefix:
            named = beginning_with(self.prefix)
            ending = re.escape(DEAD_SUFFIX) + r"\z"
            if not dead:
                # The range bounds the index scan; the ending is checked on its keys.
                return {**named, "$not": {"$regex": ending}}
            return {**named, "$regex": f"(?s)^{re.escape(self.prefix)}.*{ending}"}
        names = self.names_of(dead=dead)
        return names[0] if len(names) == 1 else {"$in": names}


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(queue_name(name, "queues") for name in json_list(text, "queues", '["orders", "refunds"]'))


def _dead(name: str) -> str:
    return name if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX


def beginning_with(prefix: str) -> dict[str, Any]:
    """Return the condition on texts with this prefix; an index can answer it."""
    return {"$gte": prefix, **_before_the_next(prefix)}


def _before_the_next(prefix: str) -> dict[str, str]:
    """Return the upper bound of names with a prefix: the server orders strings as UTF-8, by code points."""
    head, last = prefix[:-1], ord(prefix[-1])
    if last == LAST:
        # No code point is larger, so the next name is that after the shorter prefix; a surrogate has no UTF-8.
        return _before_the_next(head) if head else {}
    following = last + 1
    return {"$lt": head + chr(SURROGATES.stop if following in SURROGATES else following)}
