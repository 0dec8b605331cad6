"""Given ids are each one item, in whatever order the commands of several callers reach the server.

Each story is made up from its seed, which a failure tells. ``MONGOQ_SEED`` begins with others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.model.callers import Callers, callers
from tests.model.runs import EXAMPLES, PARTS, SEED

STORIES = 8
STEPS = 120


def _tell(uri: str, raw: Any, first: int, stories: int) -> None:
    with callers(uri, raw.database.name) as made:
        for seed in range(first, first + stories):
            story = Callers(raw, made, random.Random(seed))
            try:
                story.tell(STEPS)
                story.end()
            except BaseException as error:
                error.add_note(f"MONGOQ_SEED={seed}")
                raise


@pytest.mark.timeout(300)
def test_each_id_is_done_once_whatever_the_order_of_commands(uri: str, raw: Any) -> None:
    _tell(uri, raw, SEED, STORIES)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_id_is_done_once_in_many_more_orders(uri: str, raw: Any, part: int) -> None:
    stories = EXAMPLES // PARTS
    _tell(uri, raw, SEED + STORIES + part * stories, stories)
