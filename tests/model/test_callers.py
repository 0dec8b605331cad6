"""Given ids are each one item, in whatever order the commands of several callers reach the server.

Run a failing one again with the seed it prints, as in ``test_model``.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.callers import Callers
from tests.model.test_model import EXAMPLES, PARTS, SEED


def _run(raw: Any, examples: int, *, seed: int) -> None:
    @hypothesis.seed(seed)
    def callers() -> Callers:
        return Callers(raw)

    made: Any = callers
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(made, settings=chosen)
    except BaseException as error:
        error.add_note(f"MONGOQ_SEED={seed}")
        raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_id_is_done_once_whatever_the_order_of_commands(raw: Any) -> None:
    _run(raw, 30, seed=SEED)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_id_is_done_once_in_many_more_orders(raw: Any, part: int) -> None:
    _run(raw, EXAMPLES // PARTS, seed=SEED + part)
