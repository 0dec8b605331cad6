"""Rules: steps that belong together, and seldom come together by chance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.choices import ANY, KEYS, SLOT, TWO
from tests.model.consuming import Consuming
from tests.model.producing import Producing
from tests.model.replaying import Replaying

__all__ = ["Stories"]

FATES = st.sampled_from(["commit", "rollback", "rollback", "release", "move", "bury"])
WAYS = st.sampled_from(["pop", "block", "batch"])
"""How an item is done with."""


class Stories(Producing, Consuming, Replaying):
    """Whole lives of an item."""

    @rule(
        queue=TWO, again=TWO, slot=SLOT, once=st.sampled_from([20, 100]), way=WAYS, waits=st.sampled_from([1, 21, 101])
    )
    def an_id_lives_twice(self, *, queue: int, again: int, slot: int, once: int, way: str, waits: int) -> None:
        """Pushed while it is live, when it is done, when it is over, and when it is forgotten."""
        self._push_id(queue, slot, "first", once)
        self._push_id(again, slot, "while it is live", None)
        self._finish(queue, way)
        self._push_id(again, slot, "when it is done", once)
        self.time_passes(waits)
        self._push_id(again, slot, "when it is over", once)
        self.what_is_over_expires()
        self._push_id(again, slot, "when it is forgotten", once)

    @rule(queue=TWO, again=TWO, slot=SLOT, fate=st.sampled_from(["move", "bury", "replay"]), to=ANY)
    def an_id_goes_elsewhere(self, *, queue: int, again: int, slot: int, fate: str, to: int) -> None:
        """It is the same push still to the queue that was named, and another one to any other."""
        self._push_id(queue, slot, "first", 100)
        self.reserve(0, queue, None)
        for mine in self.consumers[0][-1:]:
            if fate == "move":
                self._move(mine, to, {}, None)
            else:
                self._bury(mine, None, "broken")
        self._push_id(again, slot, "when it is elsewhere", 100)
        if fate == "replay" and self.model.of(self.names[queue + 2]):
            self.send_dead_letters_back(queue, None, None, None, None if to == queue else again)
        self.push_the_same_many_again(again, slot, ["as one of many", 2], 20)
        self._push_key(to, "k", "replace", slot)
        self._finish(queue, "pop")
        self._push_id(1 - queue, slot, "to the other", None)

    def _push_id(self, queue: int, slot: int, payload: Any, once: int | None) -> None:
        """Before all others, so that it is the next to be done with."""
        self.push_the_same_again(queue=queue, slot=slot, payload=payload, due=-5, once=once, priority=-100)
        self.they_agree()

    def _finish(self, queue: int, way: str) -> None:
        if way == "pop":
            self.pop(queue)
        elif way == "block":
            self.work_in_a_block(queue, None, 0)
        else:
            self.reserve_many(0, queue, 4, None)
            if any(self.consumers):
                self.commit_many(0, 255, None)
        self.they_agree()

    @rule(queue=TWO, key=KEYS, way=WAYS)
    def a_key_is_free_again(self, *, queue: int, key: str, way: str) -> None:
        """When its item is done, and not while it waits for another try."""
        self._push_key(queue, key)
        self.reserve(0, queue, None)
        for mine in self.consumers[0][-1:]:
            self._rollback(mine, 0, "broken")
        self._push_key(queue, key)
        self._finish(queue, way)
        self._push_key(queue, key)
        self.they_agree()

    @rule(queue=TWO, key=KEYS, n=st.integers(1, 2))
    def what_is_replaced_starts_afresh(self, queue: int, key: str, n: int) -> None:
        """And whoever held it has lost it."""
        self._push_key(queue, key)
        self.reserve_many(0, queue, n, None)
        self._push_key(queue, key, on_duplicate="replace")
        self.they_agree()
        for mine in self.consumers[0][-n:]:
            self._commit(mine, {})

    @rule(queue=TWO, key=KEYS, key_taken=st.booleans(), is_held=st.booleans(), to=st.none() | TWO)
    def letters_come_back(self, *, queue: int, key: str, key_taken: bool, is_held: bool, to: int | None) -> None:
        """With their keys and without their errors, but not while they are held, or while their key is taken."""
        self._push_key(queue, key)
        self.reserve_many(0, queue, 4, None)
        for mine in list(self.consumers[0]):
            self._bury(mine, None, "broken")
        if key_taken:
            self._push_key(queue, key)
        if is_held:
            self.reserve(0, queue + 2, None)
        self.they_agree()
        self.send_dead_letters_back(queue, None, None, None, to)

    @rule(queue=TWO, fates=st.lists(FATES, min_size=2, max_size=4), to=ANY)
    def one_after_the_other(self, queue: int, fates: list[str], to: int) -> None:
        """What is handed back is the next to be handed out, unless others wait."""
        for fate in fates:
            self.reserve(0, queue, None)
            for mine in self.consumers[0][-1:]:
                tell: dict[str, Callable[[], None]] = {
                    "commit": partial(self._commit, mine, {}),
                    "rollback": partial(self._rollback, mine, 0, "broken"),
                    "release": partial(self._release, mine),
                    "move": partial(self._move, mine, to, {}, None),
                    "bury": partial(self._bury, mine, None, None),
                }
                tell[fate]()
            self.they_agree()

    @precondition(lambda self: len(self.model.entries) < 12)
    @rule(queue=TWO, to=TWO, back=TWO, history=st.sampled_from([30, 300]))
    def copies_are_copied(self, *, queue: int, to: int, back: int, history: int) -> None:
        """But not by a replay of the queue that the first ones were copied from."""
        for name in {queue, to}:
            self.configure_history(name, history, existing=False)
        self.push_many(queue, [1, 2, 3], None, -1)
        for source, target in ((queue, to), (to, back)):
            self._finish(source, "batch")
            self._replay(source, target)
        self._replay(queue, to)

    def _replay(self, queue: int, to: int) -> None:
        arguments: dict[str, Any] = {"named": None, "limit": None, "delay": None, "priority": None, "page": 500}
        self.replay(queue=queue, to=to, label="", **arguments)
        self.they_agree()

    def _push_key(self, queue: int, key: str, on_duplicate: str = "keep", slot: int | None = None) -> None:
        """Before most others."""
        options: dict[str, Any] = {"due": None, "headers": None, "slot": slot}
        self.push_with_key(queue=queue, payload=key, priority=-1, key=key, on_duplicate=on_duplicate, **options)
