"""How histories are run, and how many.

They are the same at each run, so that a change is what makes them fail. A seed runs a failing one again, or others:

    MONGOQ_SEED=... .venv/bin/python -m pytest tests/model
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["EXAMPLES", "PARTS", "SEED", "run_histories"]

SEED = int(os.environ.get("MONGOQ_SEED", "20261121"))
EXAMPLES = int(os.environ.get("MONGOQ_EXAMPLES", "5000"))
"""Histories, or stories, of a test that runs for a long time."""
PARTS = 5
"""Tests that share them, so that several processes can."""


def run_histories(make: Callable[[], RuleBasedStateMachine], examples: int, *, seed: int, steps: int) -> None:
    """Let Hypothesis make up histories, and shrink one that fails to the shortest that does."""

    @hypothesis.seed(seed)
    def machine() -> RuleBasedStateMachine:
        return make()

    factory: Any = machine
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
