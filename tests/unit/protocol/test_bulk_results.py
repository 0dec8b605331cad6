"""Bulks of which fewer were settled than were sent: whatever became of each item, no report is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement
from typing import Any, NamedTuple

import pytest

from mongoq.model.item import id_key
from mongoq.model.outcomes import Failed, Move
from mongoq.protocol.settle import move, settle
from mongoq.protocol.settle.apply_outcomes import apply_outcomes
from tests.unit.protocol.test_bulk import IDS, MINUTE, foreign, stored, updated, verdicts
from tests.unit.scripted import LOST, NOW, TOKEN, context, found, play, reserved_item

MOST = 3


@dataclass(frozen=True)
class Fate:
    """What became of an item.

    Attributes:
        is_settled: whether our command settled it.
        document: makes the stored document when it is read, by its place; ``None`` when it is gone.
        key: its key.
    """

    is_settled: bool
    document: Callable[[int], dict[str, Any]] | None
    key: str | None = None


def left(**fields: Any) -> Callable[[int], dict[str, Any]]:
    return lambda place: stored(place, **{"when": NOW, "attempts": 0, **fields})


def in_history(place: int) -> dict[str, Any]:
    return stored(place, settled=TOKEN, processed=NOW, attempts=1)


SEEN_NO_MORE = [Fate(True, foreign), Fate(True, None), Fate(True, None, "k")]
LOST_BEFORE = [
    Fate(False, foreign),
    Fate(False, None),
    Fate(False, left(q="elsewhere")),
    Fate(False, left(attempts=5)),
    Fate(False, left(when=MINUTE, attempts=1)),
    Fate(False, left(key="k"), "k"),
    Fate(False, left(key="k", when=MINUTE), "k"),
    Fate(False, left(key="l"), "k"),
]


class Way(NamedTuple):
    """How items are settled, how they are stored then, and what may have become of those since."""

    flow: Callable[[Sequence[Any]], Any]
    settled: list[Fate]
    since: list[Fate] = SEEN_NO_MORE


WAYS = {
    "commit": Way(
        lambda items: settle.commit_many(context(), items),
        [Fate(True, None), Fate(True, None, "k")],
        [],
    ),
    "commit with history": Way(
        lambda items: settle.commit_many(context(history=60), items),
        [Fate(True, in_history), Fate(True, in_history, "k")],
        [Fate(True, None)],
    ),
    "rollback": Way(
        lambda items: settle.rollback_many(context(), items, delay=0, error=None),
        [Fate(True, left(attempts=1)), Fate(True, left(attempts=1, key="k"), "k")],
    ),
    "release": Way(
        lambda items: settle.release_many(context(), items),
        [Fate(True, left()), Fate(True, left(key="k"), "k")],
    ),
    "failure of nobody's": Way(
        lambda items: apply_outcomes(context(), [(item, Failed("stopped", counted=False)) for item in items], str),
        [Fate(True, left()), Fate(True, left(key="k"), "k")],
    ),
    "move": Way(
        lambda items: move.move_many(context(), [(item, Move("next")) for item in items], str),
        [Fate(True, left(q="next")), Fate(True, left(q="next"), "k")],
    ),
    "bury": Way(
        lambda items: settle.rollback_many(context(max_retries=0), items, delay=0, error=None),
        [Fate(True, left(q="orders.dead")), Fate(True, left(q="orders.dead"), "k")],
    ),
}


def reports_of(outcome: Any) -> list[str]:
    if outcome is None or isinstance(outcome, Exception):
        return verdicts(outcome)
    return [
        {None: "done", True: "lost", False: "uncertain"}[getattr(outcome.get(id_key(id)), "certain", None)]
        for id in IDS
    ]


def check(way: str, fates: Sequence[Fate], *, reply_lost: bool) -> None:
    """Settle every batch of these items, and check that no report is wrong."""
    flow, certain = WAYS[way].flow, 0
    for batch in chain.from_iterable(combinations_with_replacement(fates, size) for size in range(2, MOST + 1)):
        number = sum(fate.is_settled for fate in batch)
        if number == len(batch) and not reply_lost:
            continue
        items = [reserved_item(_id=IDS[place], due=NOW, key=fate.key) for place, fate in enumerate(batch)]
        documents = [fate.document(place) for place, fate in enumerate(batch) if fate.document is not None]
        replies = [LOST, updated(0)] if reply_lost else [updated(number)]
        _, outcome = play(flow(items), [*replies, found(*documents)])
        reports = reports_of(outcome)[: len(batch)]
        wrong = {"done": False, "lost": True}
        assert not any(wrong.get(report) is fate.is_settled for report, fate in zip(reports, batch, strict=True)), (
            batch,
            reports,
        )
        certain += len(reports) - reports.count("uncertain")
    assert certain, "some outcomes are certain"


@pytest.mark.parametrize("way", WAYS)
def test_whatever_became_of_each_no_report_is_wrong(way: str) -> None:
    check(way, [*WAYS[way].settled, *WAYS[way].since, *LOST_BEFORE], reply_lost=False)


@pytest.mark.parametrize("way", WAYS)
def test_nor_when_a_reply_was_lost(way: str) -> None:
    check(way, [*WAYS[way].settled, *WAYS[way].since, *LOST_BEFORE], reply_lost=True)


@pytest.mark.parametrize("way", sorted({*WAYS} - {"failure of nobody's"}))  # a worker settles an item once
def test_nor_who_had_settled_it_before_just_like_that(way: str) -> None:
    """As long as what was settled now is still to be seen; what is gone since could be the one that was."""
    settled = WAYS[way].settled
    before = [Fate(False, fate.document, fate.key) for fate in settled]
    check(way, [*settled, *before, *LOST_BEFORE], reply_lost=False)
