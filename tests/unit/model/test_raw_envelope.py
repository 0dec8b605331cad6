"""Fresh items: never reserved, and what no push replaces."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Int64, ObjectId

from mongoq.model.envelope import new_envelope
from mongoq.model.raw import is_fresh
from tests.unit.scripted import NOW


def pushed(**changes: Any) -> dict[str, Any]:
    headers = changes.pop("headers", None)
    made = new_envelope("orders", {"n": 1}, id=ObjectId(), when=NOW, priority=3, headers=headers, once=None)
    return {**made, **changes}


@pytest.mark.parametrize("changes", [{}, {"headers": {"a": 1}}, {"other": 1}], ids=repr)
def test_what_was_pushed_is_fresh(changes: dict[str, Any]) -> None:
    assert is_fresh(pushed(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"by": "host:1:aa"},
        {"by": None},
        {"key": "k"},
        {"once": NOW},
        {"attempts": 1},
        {"attempts": 0.0},
        {"attempts": Int64(0)},
        {"priority": 1.5},
        {"_id": "text"},
        {"when": [NOW]},
        {"when": bson.DatetimeMS(-(2**62))},
    ],
    ids=repr,
)
def test_what_somebody_has_had_or_some_other_program_wrote_is_not(changes: dict[str, Any]) -> None:
    assert not is_fresh(pushed(**changes))
