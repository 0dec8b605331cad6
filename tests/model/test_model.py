"""Queues behave as a model of them does, whatever happens to them in whatever order.

Hypothesis makes up the histories, and shrinks one that fails to the shortest that does. Every step is told to the
real broker and to the model; then all that is stored is compared. Run a failing one again with the seed it prints:

    MONGOQ_SEED=... .venv/bin/python -m pytest tests/model
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from pymongo import MongoClient

import mongoq
from tests.model.consuming import Consuming
from tests.model.producing import Producing
from tests.model.replaying import Replaying
from tests.model.world import Setting

FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""The server's TTL monitor goes by its own clock: nothing expires there before we say so."""
SEED = int(os.environ.get("MONGOQ_SEED", "20261121"))
"""The same histories at each run, so that a change is what makes them fail; others by their seed."""


class Queues(Producing, Consuming, Replaying):
    """All rules together."""


@pytest.fixture
def setting(client: MongoClient[Any], database: str) -> Iterator[Setting]:
    raw, clock = client[database]["mongoq"], mongoq.VirtualClock(FAR)
    with mongoq.Broker(raw, clock=clock) as broker:
        yield Setting(broker, raw, clock)


def _run(setting: Setting, examples: int, steps: int = 50) -> None:
    @hypothesis.seed(SEED)
    def queues() -> Queues:
        return Queues(setting)

    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(queues, settings=chosen)
    except BaseException as error:
        error.add_note(f"MONGOQ_SEED={SEED}")
        raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_queues_behave_as_their_model_does(setting: Setting) -> None:
    _run(setting, 200)


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_queues_behave_as_their_model_does_for_a_long_time(setting: Setting) -> None:
    _run(setting, int(os.environ.get("MONGOQ_EXAMPLES", "5000")))
