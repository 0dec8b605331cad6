"""Rules: what producers and those who look after queues do."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import hypothesis.strategies as st
from bson import ObjectId
from hypothesis.stateful import initialize, precondition, rule

import mongoq
from tests.model.choices import ANY, DUES, HEADERS, KEYS, NUMBER, ONCE, PAYLOADS, PRIORITIES, SLOT, TWO
from tests.model.looking import STATES
from tests.model.world import World, seconds

__all__ = ["Producing"]

WEEK = timedelta(days=7)


class Producing(World):
    """Pushes, time, and what is thrown away."""

    @initialize(sizes=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def begin_with_some(self, sizes: tuple[int, int]) -> None:
        for queue, size in enumerate(sizes):
            for n in range(size):
                self.push(queue, {"n": n}, None, 0, None)

    @rule(queue=ANY, payload=PAYLOADS, due=DUES, priority=PRIORITIES, headers=HEADERS)
    def push(self, queue: int, payload: Any, due: Any, priority: int, headers: Any) -> None:
        real, name = self.queue(queue)
        new, options = self.new(payload, due, priority, headers)
        id = real.push(payload, **options)
        assert id not in self.model.pushed
        assert self.model.push(name, new, id) == id

    @rule(queue=TWO, slot=SLOT, payload=PAYLOADS, due=DUES, once=ONCE)
    def push_the_same_again(
        self, *, queue: int, slot: int, payload: Any, due: Any, once: Any, priority: int = 0
    ) -> None:
        real, name = self.queue(queue)
        new, options = self.new(payload, due, priority, None)
        until = self.model.now + (seconds(once) or WEEK)
        self.push_to_both(
            lambda: real.push(payload, id=self.ids[slot], once=once, **options),
            lambda _: self.model.push(name, new, self.ids[slot], once=until),
        )

    @rule(
        queue=ANY,
        payload=PAYLOADS,
        due=DUES,
        priority=PRIORITIES,
        headers=HEADERS,
        key=KEYS,
        on_duplicate=st.sampled_from(["keep", "replace", "replace", "raise"]),
        slot=st.none() | SLOT,
    )
    def push_with_key(
        self, *, queue: int, payload: Any, due: Any, priority: int, headers: Any, key: str, on_duplicate: Any, slot: Any
    ) -> None:
        real, name = self.queue(queue)
        new, options = self.new(payload, due, priority, headers)
        options |= {"key": key, "on_duplicate": on_duplicate, "id": None if slot is None else self.ids[slot]}
        common = {"once": None if slot is None else self.model.now + WEEK, "key": key, "on_duplicate": on_duplicate}
        self.push_to_both(
            lambda: real.push(payload, **options),
            lambda id: self.model.push(name, new, options["id"] or id, **common),
        )

    @rule(queue=TWO, payloads=st.lists(PAYLOADS, min_size=1, max_size=4), due=DUES, priority=PRIORITIES)
    def push_many(self, queue: int, payloads: list[Any], due: Any, priority: int) -> None:
        real, name = self.queue(queue)
        for id, payload in zip(
            real.push_many(payloads, **self.new(None, due, priority, None)[1]), payloads, strict=True
        ):
            assert id not in self.model.pushed
            self.model.push(name, self.new(payload, due, priority, None)[0], id)

    @rule(queue=TWO, first=SLOT, payloads=st.lists(PAYLOADS, min_size=1, max_size=2), once=ONCE)
    def push_the_same_many_again(self, queue: int, first: int, payloads: list[Any], once: Any) -> None:
        real, name = self.queue(queue)
        ids = [*self.ids, self.ids[0]][first : first + len(payloads)]
        until = self.model.now + (seconds(once) or WEEK)
        pushed, refused = ids, {}
        try:
            assert real.push_many(payloads, ids=ids, once=once) == ids
        except mongoq.BatchIncomplete as error:
            pushed, refused = list(error.done), dict(error.failed)
        assert pushed == [id for id in ids if id not in refused]
        for id, payload in zip(ids, payloads, strict=True):
            push_to_model = partial(self.model.push, name, self.new(payload, None, 0, None)[0], id, once=until)
            if id in refused:
                self.check_duplicate(refused[id], self.refusal(push_to_model))
            else:
                assert push_to_model() == id

    @rule(by=st.sampled_from([0.001, 1, 1, 4, 11, 31, 31, 70]))
    def time_passes(self, by: float) -> None:
        self.model.now = self.clock.advance(by)

    @precondition(lambda self: any(entry.processed for entry in self.model.entries.values()))
    @rule()
    def what_is_over_expires(self) -> None:
        """The TTL monitor of the server goes by another clock than the test's."""
        count = self.raw.delete_many({"expires": {"$lte": self.model.now}}).deleted_count
        assert count == self.model.sweep()

    @precondition(lambda self: len(self.model.entries) > 3)
    @rule(queue=ANY, number=NUMBER)
    def remove(self, queue: int, number: int) -> None:
        real, name = self.queue(queue)
        here = sorted(entry.id for entry in self.model.entries.values() if entry.queue == name)
        reserved_ids = [
            reservation.run.id for holding in self.consumers for reservation in holding if reservation.run.queue == name
        ]
        candidates = [*reserved_ids, *here, *self.ids, ObjectId()]
        id = candidates[number % len(candidates)]
        assert real.remove(id) == self.model.remove(name, id)

    @precondition(lambda self: len(self.model.entries) > 5)
    @rule(queue=ANY, state=st.sampled_from([*STATES, None, None]))
    def purge(self, queue: int, state: Any) -> None:
        real, name = self.queue(queue)
        assert real.purge(state=state) == self.model.purge(name, state)

    @precondition(lambda self: not any(rules.paused for rules in self.rules_of.values()))
    @rule(queue=ANY)
    def pause(self, queue: int) -> None:
        real, name = self.queue(queue)
        real.pause()
        self.rules_of[name].paused = True
        assert real.is_paused()
        assert (real.pop(), real.reserve(), real.reserve_many(2)) == (None, None, [])

    @precondition(lambda self: any(rules.paused for rules in self.rules_of.values()))
    @rule()
    def resume(self) -> None:
        for name, rules in self.rules_of.items():
            if rules.paused:
                self.queues[name].resume()
                rules.paused = False

    @rule(queue=TWO, max_retries=st.sampled_from([None, 0, 1, 2]), lease=st.sampled_from([10, 30]))
    def configure(self, queue: int, max_retries: int | None, lease: int) -> None:
        real, name = self.queue(queue)
        settings = real.configure(max_retries=max_retries, lease=lease)
        assert (settings.max_retries, settings.lease) == (max_retries, timedelta(seconds=lease))
        self.rules_of[name].max_retries, self.rules_of[name].lease = settings.max_retries, settings.lease

    @rule(queue=TWO, history=st.sampled_from([None, 30, 300]), existing=st.booleans())
    def configure_history(self, queue: int, history: int | None, existing: bool) -> None:
        real, name = self.queue(queue)
        real.configure(history=history, existing=existing)
        self.rules_of[name].history = seconds(history)
        if existing:
            self.model.keep_for(name, seconds(history))
