"""Queues behave as a model of them does, whatever happens to them in whatever order.

Hypothesis makes up the histories, and shrinks one that fails to the shortest that does. Every step is sent to the
real broker and to the model; then all that is stored is compared. Run a failing one again with the seed it prints:

    MONGOQ_SEED=... .venv/bin/python -m pytest tests/model
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import hypothesis
import pytest
from bson import ObjectId
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from mongoq.model.encoding import ids
from tests.model.stories import Stories

SEED = int(os.environ.get("MONGOQ_SEED", "20261121"))
"""The same histories at each run, so that a change is what makes them fail; others by their seed."""

EXAMPLES = int(os.environ.get("MONGOQ_EXAMPLES", "5000"))
PARTS = 5
SAMPLE = 25
"""Histories of each part where not all of them run."""

INIT = ObjectId.__init__


class Queues(Stories):
    """All rules together."""


def _counted() -> Callable[..., None]:
    """Ids that are the same whenever the same history runs again: orders follow from them, and ids of copies."""
    numbers = count(1)

    def init(self: ObjectId, oid: Any = None) -> None:
        INIT(self, next(numbers).to_bytes(12) if oid is None else oid)

    return init


def _run(raw: Any, monkeypatch: pytest.MonkeyPatch, examples: int, *, seed: int = SEED, steps: int = 50) -> None:
    @hypothesis.seed(seed)
    def queues() -> Queues:
        monkeypatch.setattr(ObjectId, "__init__", _counted())
        monkeypatch.setattr(ids, "_count_up", lambda number: [ObjectId().binary for _ in range(number)])
        return Queues(raw)

    factory: Any = queues

    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    try:
        run_state_machine_as_test(factory, settings=profile)
    except BaseException as error:
        error.add_note(f"MONGOQ_SEED={seed}")
        raise


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(2))
def test_queues_behave_as_their_model_does(raw: Any, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    _run(raw, monkeypatch, SAMPLE, seed=SEED - part)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_queues_behave_as_their_model_does_for_a_long_time(
    raw: Any, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Other histories in each part, so that several processes share them."""
    _run(raw, monkeypatch, EXAMPLES // PARTS, seed=SEED + part)
