"""Queues behave as a model of them does, whatever happens to them in whatever order.

Every step is sent to the real broker and to the model; then all that is stored is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from bson import ObjectId

from tests.model.runs import EXAMPLES, PARTS, SEED, run_histories
from tests.model.stories import Stories

SAMPLE = 12
STEPS = 50
INIT = ObjectId.__init__


def _counted() -> Callable[..., None]:
    """Ids of callers that are the same whenever the same history runs again: ids of copies follow from them."""
    numbers = count(1)

    def init(self: ObjectId, oid: Any = None) -> None:
        INIT(self, next(numbers).to_bytes(12) if oid is None else oid)

    return init


def _run(raw: Any, monkeypatch: pytest.MonkeyPatch, examples: int, seed: int) -> None:
    def queues() -> Stories:
        monkeypatch.setattr(ObjectId, "__init__", _counted())
        monkeypatch.delattr(ObjectId, "_inc_lock", raising=False)  # mongoq then makes its ids by ObjectId() as well
        return Stories(raw)

    run_histories(queues, examples, seed=seed, steps=STEPS)


@pytest.mark.timeout(300)
def test_queues_behave_as_their_model_does(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(raw, monkeypatch, SAMPLE, SEED)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_queues_behave_as_their_model_does_for_a_long_time(
    raw: Any, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Other histories in each part."""
    _run(raw, monkeypatch, EXAMPLES // PARTS, SEED + part)
