"""Given ids are each one item, in whatever order the commands of several callers reach the server.

Each story is made up from its seed, which a failure tells. ``MONGOQ_SEED`` begins with others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.model.callers import Callers
from tests.model.test_model import EXAMPLES, PARTS, SEED

STORIES = 25
STEPS = 120


def _tell(raw: Any, seed: int) -> None:
    callers = Callers(raw, random.Random(seed))
    callers.tell(STEPS)
    try:
        callers.end()
    except BaseException as error:
        error.add_note(f"MONGOQ_SEED={seed}")
        raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_id_is_done_once_whatever_the_order_of_commands(raw: Any) -> None:
    for seed in range(SEED, SEED + STORIES):
        _tell(raw, seed)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_id_is_done_once_in_many_more_orders(raw: Any, part: int) -> None:
    for number in range(EXAMPLES // PARTS):
        _tell(raw, SEED + STORIES + number * PARTS + part)
