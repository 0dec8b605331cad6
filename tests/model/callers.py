"""Several callers at once, one command of one of them at a time: what two commands leave open is met in every order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
from bson import ObjectId
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import mongoq
from mongoq.protocol import claim, move, pop, push, push_many, replay, settle

__all__ = ["Callers"]

CALLERS = 3
IDS = 2
QUEUES: dict[str, float | None] = {"orders": None, "kept": 0.001}
"""Without history, and with one that is over long before the ids are forgotten."""
TOLD: dict[str, Any] = {"delay": None, "when": None, "priority": 0, "headers": None, "once": None}
REPLAYED = {
    **dict.fromkeys(("hop", "ids", "since", "until", "after", "where", "limit", "transform"), None),
    **dict.fromkeys(("delay", "priority", "rate", "progress"), None),
    "label": "",
    "once": 3600,
    "dry_run": False,
    "page": 100,
}


class Caller:
    """A process that makes one call at a time.

    Attributes:
        flow: the call under way; ``None`` between calls.
        request: what it sends next.
    """

    def __init__(self, raw: Any, clock: mongoq.VirtualClock) -> None:
        self.broker = mongoq.Broker(raw, clock=clock)
        self.flow: Generator[Any, Any, Any] | None = None
        self.request: Any = None

    def warm_up(self) -> None:
        """Do what a process does once, so that commands of calls are few."""
        for name in QUEUES:
            self.broker.queue(name).pop()
        for state in self.broker._context.states.values():
            state.read_at = math.inf
        self.broker._context.topics.read_at = math.inf

    def queue(self, name: str) -> Any:
        return self.broker.queue(name)._context

    def begin(self, flow: Generator[Any, Any, Any]) -> None:
        self.flow, self.request = flow, next(flow)

    def step(self) -> Any:
        """Send one command; returns what the call returned if this was its last one."""
        assert self.flow is not None
        driver: Any = self.broker._driver
        try:
            try:
                reply = driver._perform(self.request, [])
            except Exception as error:
                self.request = self.flow.throw(driver._disturbance.told(error))
            else:
                self.request = self.flow.send(reply)
        except StopIteration as stop:
            self.flow = None
            return stop.value
        return None


class Callers(RuleBasedStateMachine):
    """Callers push, pop, settle and replay the same ids. Whatever the order, each id is handed out for good once."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        raw.delete_many({})
        clock = mongoq.VirtualClock(datetime.now(UTC))
        self.callers = [Caller(raw, clock) for _ in range(CALLERS)]
        self.ids = {name: [ObjectId() for _ in range(IDS)] for name in QUEUES}
        self.pushed: set[Any] = set()
        self.done: Counter[Any] = Counter()

    @initialize(sources=st.integers(0, 2))
    def prepare(self, sources: int) -> None:
        broker = self.callers[0].broker
        for name, history in {**QUEUES, "source": 3600.0}.items():
            broker.queue(name, history=history, max_retries=None).resume()
        for number in range(sources):
            broker.queue("source").push(f"copy {number}")
            broker.queue("source").pop()
        for caller in self.callers:
            caller.warm_up()

    @rule(caller=st.integers(0, CALLERS - 1), name=st.sampled_from([*QUEUES]), number=st.integers(0, IDS - 1))
    def push(self, caller: int, name: str, number: int) -> None:
        id, payload = self.ids[name][number], f"{name} {number}"
        self._begin(caller, lambda by: push.push(by.queue(name), payload, id=id, **TOLD), payload)

    @rule(
        caller=st.integers(0, CALLERS - 1),
        name=st.sampled_from([*QUEUES]),
        number=st.integers(0, IDS - 1),
        on_duplicate=st.sampled_from(["keep", "replace"]),
    )
    def push_with_a_key(self, caller: int, name: str, number: int, on_duplicate: Any) -> None:
        id, payload = self.ids[name][number], f"{name} {number}"
        told = {**TOLD, "key": payload, "on_duplicate": on_duplicate}
        self._begin(caller, lambda by: push.push(by.queue(name), payload, id=id, **told), payload)

    @rule(caller=st.integers(0, CALLERS - 1), name=st.sampled_from([*QUEUES]))
    def push_many(self, caller: int, name: str) -> None:
        payloads = [f"{name} {number}" for number in range(IDS)]
        self._begin(
            caller, lambda by: push_many.push_many(by.queue(name), payloads, ids=self.ids[name], **TOLD), *payloads
        )

    @rule(caller=st.integers(0, CALLERS - 1), to=st.sampled_from([*QUEUES]))
    def replay(self, caller: int, to: str) -> None:
        self._begin(caller, lambda by: replay.replay(by.queue("source"), to=by.queue(to), **REPLAYED))

    @rule(
        caller=st.integers(0, CALLERS - 1), name=st.sampled_from([*QUEUES]), how=st.sampled_from(["pop", "pop", "run"])
    )
    def take(self, caller: int, name: str, how: str) -> None:
        self._begin(caller, lambda by: pop.pop(by.queue(name), on_invalid="bury") if how == "pop" else run(by, name))

    @rule(caller=st.integers(0, CALLERS - 1), name=st.sampled_from([*QUEUES]), to=st.sampled_from(["orders", "next"]))
    def hand_on(self, caller: int, name: str, to: str) -> None:
        self._begin(caller, lambda by: hand_on(by, name, to))

    @rule(caller=st.integers(0, CALLERS - 1), steps=st.integers(1, 3))
    def step(self, caller: int, steps: int) -> None:
        for _ in range(steps):
            self._step(self.callers[caller])

    def _begin(self, caller: int, make: Any, *payloads: str) -> None:
        """Let a caller begin a call, when it has ended the one before."""
        by = self.callers[caller]
        while by.flow is not None:
            self._step(by)
        self.pushed |= set(payloads)
        by.begin(make(by))

    def _step(self, by: Caller) -> None:
        if by.flow is None:
            return
        ended = by.step()
        if isinstance(ended, mongoq.Item):
            self.done[ended.payload] += 1

    def teardown(self) -> None:
        """Let all calls end, and take what is left."""
        for by in self.callers:
            while by.flow is not None:
                self._step(by)
        broker = self.callers[0].broker
        for name in (*QUEUES, "next"):
            while (item := broker.queue(name).pop()) is not None:
                self.done[item.payload] += 1
        copies = {payload: times for payload, times in self.done.items() if payload.startswith("copy")}
        for by in self.callers:
            by.broker.close()
        assert {payload: self.done[payload] for payload in self.pushed} == dict.fromkeys(self.pushed, 1)
        assert all(times <= len(QUEUES) for times in copies.values()), "a copy for each queue"


def run(by: Caller, name: str) -> Generator[Any, Any, Any]:
    """Reserve an item and commit it; return it as done."""
    item = yield from claim.reserve(by.queue(name), lease=None, wait=None, on_invalid="bury")
    if item is not None:
        yield from settle.commit(by.queue(name), item)
    return item


def hand_on(by: Caller, name: str, to: str) -> Generator[Any, Any, None]:
    """Reserve an item and move it to another queue."""
    context = by.queue(name)
    item = yield from claim.reserve(context, lease=None, wait=None, on_invalid="bury")
    if item is not None:
        told = dict.fromkeys(("payload", "patch", "delay", "when", "priority", "headers"), None)
        where = move.destination(context, to)
        yield from move.move(context, item, where, replace_payload=False, replace_headers=False, **told)
