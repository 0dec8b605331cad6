"""The seed of a campaign says who is killed when."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.schedule import PROCESS_ROLES, WORKERS, schedule


def test_a_seed_brings_its_schedule_back() -> None:
    assert schedule(7, kills=50, crashes=4) == schedule(7, kills=50, crashes=4)


def test_another_seed_draws_another_schedule() -> None:
    assert schedule(7, kills=50, crashes=4) != schedule(8, kills=50, crashes=4)


@pytest.mark.parametrize(("kills", "crashes"), [(14, 2), (16, 2), (250, 10)])
@pytest.mark.parametrize("seed", range(20))
def test_there_are_as_many_kills_as_asked_for(seed: int, kills: int, crashes: int) -> None:
    acts = Counter(act.what for act in schedule(seed, kills=kills, crashes=crashes))
    assert acts["crash"] + acts["crash alone"] == crashes
    assert acts["crash alone"] == -(-crashes // 2)
    assert acts["kill"] == kills - crashes
    assert acts["freeze"] == acts["thaw"] > 0
    assert acts["stall"] == -(-crashes // 2)
    assert acts["restore"] == crashes + acts["stall"]


def test_anybody_may_be_killed_and_workers_alone_stand_still() -> None:
    acts = schedule(7, kills=250, crashes=10)
    assert {act.place for act in acts if act.what == "kill"} == set(range(len(PROCESS_ROLES)))
    assert {act.place for act in acts if act.what in ("freeze", "thaw")} == set(WORKERS)
    assert all(act.pause >= 0 for act in acts)
