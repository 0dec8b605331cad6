"""Rules: dead letters that go back, and copies of what was processed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from bson import ObjectId
from hypothesis.stateful import precondition, rule

from tests.model.choices import ANY, NUMBER, TWO
from tests.model.entry import Entry
from tests.model.looking import Looking
from tests.model.past_model import Wanted, revive

__all__ = ["Replaying"]

WEEK = timedelta(days=7)
MILLISECOND = timedelta(milliseconds=1)
LIMITS = st.sampled_from([None, None, 1, 2])


class Replaying(Looking):
    """Replays of both kinds."""

    def _named(self, entries: Sequence[Entry], number: int | None) -> list[Any] | None:
        """Some of the ids that are there, and one that is not."""
        if number is None:
            return None
        return [*(entry.id for place, entry in enumerate(entries) if number >> place % 6 & 1), ObjectId()]

    @precondition(lambda self: any(self.model.of(name) for name in self.names[2:]))
    @rule(queue=TWO, named=st.none() | NUMBER, n=st.none() | st.integers(0, 2), limit=LIMITS, to=st.none() | TWO)
    def send_dead_letters_back(
        self, queue: int, named: int | None, n: int | None, limit: int | None, to: int | None
    ) -> None:
        dead, name = self.queue(queue + 2 if self.model.of(self.names[queue + 2]) else 3 - queue)
        ids = self._named(self.model.of(name), named)
        options: dict[str, Any] = {"ids": ids} if ids else {"limit": limit}
        if n is not None and not ids:
            options["where"] = {"n": n}
        target, before = None if to is None else self.names[to], [entry.id for entry in self.model.of(name)]
        result = dead.replay(to=target, **options)
        matches = (lambda payload: payload == {"n": n}) if "where" in options else (lambda _: True)
        expected = revive(self.model, name, ids=ids, where=matches, limit=options.get("limit"), to=target)
        assert (result.found, result.pushed, result.skipped) == (expected.found, expected.pushed, expected.skipped)
        assert (result.refused, {id for id, _ in result.refusals}) == (len(expected.refused), set(expected.refused))
        assert set(result.missing) == set(expected.missing)
        self.look_for(before[:2], self.names.index(name), self.names.index(target or name.removesuffix(".dead")))

    @precondition(lambda self: any(self.model.history(name) for name in self.names))
    @rule(
        queue=TWO,
        to=ANY,
        named=st.none() | NUMBER,
        limit=LIMITS,
        label=st.sampled_from(["", "again"]),
        delay=st.sampled_from([None, 5]),
        priority=st.sampled_from([None, 2]),
        page=st.sampled_from([1, 500]),
    )
    def replay(
        self,
        *,
        queue: int,
        to: int,
        named: int | None,
        limit: int | None,
        label: str,
        delay: int | None,
        priority: int | None,
        page: int,
    ) -> None:
        real, name = self.queue(queue if self.model.history(self.names[queue]) else 1 - queue)
        target = self.names[to]
        ids = self._named(self.model.history(name), named)
        originals = self.copies.select(name, ids, limit)
        wanted = self.copies.wanted(originals, target, label)
        options = {"to": target, "ids": ids, "limit": limit, "label": label, "delay": delay, "priority": priority}
        for dry_run in (True, False):
            result = real.replay(**options, page=page, dry_run=dry_run)
            assert (result.found, result.pushed) == (len(originals), len(wanted))
            assert result.already == len(originals) - len(wanted)
            assert result.skipped == result.refused == 0
        end = self.model.now + timedelta(seconds=delay or 0)
        for when in self._adopted(wanted, target, priority, label):
            assert abs(when - end) <= MILLISECOND * len(originals)
        again = real.replay(**options, page=page)
        assert (again.pushed, again.already) == (0, len(originals))

    def _adopted(self, wanted: list[Wanted], to: str, priority: int | None, label: str) -> list[datetime]:
        """Take in the copies, one of each original and in their order, and return when they are due."""
        documents = list(self.raw.find({"q": to, "_id": {"$nin": list(self.model.entries)}}))
        copies = {document["origin"]["id"]: document for document in documents}
        assert len(documents) == len(copies) == len(wanted)
        places = []
        for wanted_copy in wanted:
            document = copies[wanted_copy.original.id]
            self.copies.add(
                wanted_copy, document["_id"], when=document["when"], priority=priority, label=label, once=WEEK
            )
            places.append((document["when"], document["_id"]))
        assert places == sorted(places), "copies are not in the order of the originals"
        return [when for when, _ in places]
