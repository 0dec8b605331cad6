"""The seed of a campaign says who is killed when."""

from __future__ import annotations

from collections import Counter

from tests.crash.schedule import PROCESS_ROLES, WORKERS, schedule


def test_a_seed_brings_its_schedule_back() -> None:
    assert schedule(7, kills=50, crashes=4) == schedule(7, kills=50, crashes=4)
    assert schedule(7, kills=50, crashes=4) != schedule(8, kills=50, crashes=4)


def test_there_are_as_many_kills_as_asked_for_of_anybody() -> None:
    for seed in range(5):
        acts = schedule(seed, kills=250, crashes=10)
        counts = Counter(act.what for act in acts)
        assert counts["crash"] + counts["crash alone"] == 10
        assert counts["kill"] == 240
        assert counts["freeze"] == counts["thaw"] > 0
        assert counts["restore"] == 10 + counts["stall"]
        assert {act.place for act in acts if act.what == "kill"} == set(range(len(PROCESS_ROLES)))
        assert {act.place for act in acts if act.what in ("freeze", "thaw")} == set(WORKERS)
