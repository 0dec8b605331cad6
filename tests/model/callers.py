"""Several callers at once, one command of one of them at a time: what two commands leave open is met in every order."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

import mongoq
from mongoq.model.outcomes import Move
from mongoq.protocol.claim import pop, reserve
from mongoq.protocol.history import replay
from mongoq.protocol.push import push, push_many
from mongoq.protocol.settle import move, settle

__all__ = ["Callers"]

CALLERS = 3
IDS = 2
QUEUES: dict[str, float | None] = {"orders": None, "kept": 0.001}
"""Without history, and with one that is over long before the ids are forgotten."""
NO_OPTIONS: dict[str, Any] = {"delay": None, "when": None, "priority": 0, "headers": None, "once": None}
REPLAYED: dict[str, Any] = {
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
                reply = driver._performer.perform(self.request, [])
            except Exception as error:
                self.request = self.flow.throw(driver._failover.convert_error(error))
            else:
                self.request = self.flow.send(reply)
        except StopIteration as stop:
            self.flow = None
            return stop.value
        return None


class Callers:
    """Callers push, pop, settle and replay the same ids. Whatever the order, each id is handed out for good once.

    Attributes:
        log: what happened, to be read when it went wrong.
        pushed: the payloads of the pushes that were begun.
        done: how often each payload was handed out for good.
    """

    def __init__(self, raw: Any, chance: random.Random) -> None:
        raw.delete_many({"q": {"$exists": True}})
        self.log: list[str] = []
        self.pushed: set[str] = set()
        self.done: Counter[str] = Counter()
        self._chance = chance
        clock = mongoq.VirtualClock(datetime.now(UTC))
        self._callers = [Caller(raw, clock) for _ in range(CALLERS)]
        self._ids = {name: [ObjectId() for _ in range(IDS)] for name in QUEUES}
        broker = self._callers[0].broker
        for name, history in {**QUEUES, "source": 3600.0}.items():
            broker.queue(name, history=history, max_retries=None).resume()
        broker.queue("source").push("copy")
        broker.queue("source").pop()
        for caller in self._callers:
            caller.warm_up()

    def tell(self, steps: int) -> None:
        """Let some caller begin a call, or send the next command of the one that it has begun, so many times."""
        for _ in range(steps):
            by = self._chance.choice(self._callers)
            if by.flow is None:
                self._begin(by)
            else:
                self._step(by)

    def _begin(self, by: Caller) -> None:
        name, number = self._chance.choice([*QUEUES]), self._chance.randrange(IDS)
        id, payload, context = self._ids[name][number], f"{name} {number}", by.queue(name)
        call = self._chance.choice(["push", "push", "keyed", "push_many", "replay", "pop", "pop", "pop", "run", "move"])
        self.log.append(f"{self._callers.index(by)} begins {call} {payload}")
        if call in ("push", "keyed"):
            keyed: dict[str, Any] = {"key": payload, "on_duplicate": self._chance.choice(["keep", "replace"])}
            flow: Any = push.push(context, payload, id=id, **NO_OPTIONS, **(keyed if call == "keyed" else {}))
            self.pushed.add(payload)
        elif call == "push_many":
            payloads = [f"{name} {each}" for each in range(IDS)]
            flow = push_many.push_many(context, payloads, ids=self._ids[name], **NO_OPTIONS)
            self.pushed |= set(payloads)
        elif call == "replay":
            flow = replay.replay(by.queue("source"), to=context, **REPLAYED)
        elif call == "pop":
            flow = pop.pop(context, on_invalid="bury")
        else:
            flow = run(by, name) if call == "run" else hand_on(by, name, self._chance.choice(["orders", "next"]))
        by.begin(flow)

    def _step(self, by: Caller) -> None:
        self.log.append(f"{self._callers.index(by)} sends {getattr(by.request, 'method', type(by.request).__name__)}")
        ended = by.step()
        if isinstance(ended, mongoq.Item):
            self.done[ended.payload] += 1
            self.log.append(f"{self._callers.index(by)} has {ended.payload}")

    def end(self) -> None:
        """Let all calls end, take what is left, and compare."""
        for by in self._callers:
            while by.flow is not None:
                self._step(by)
        broker = self._callers[0].broker
        for name in (*QUEUES, "next"):
            while (item := broker.queue(name).pop()) is not None:
                self.done[item.payload] += 1
        for by in self._callers:
            by.broker.close()
        copies = self.done.pop("copy", 0)
        assert self.done == dict.fromkeys(self.pushed, 1), self.log
        assert copies <= len(QUEUES), self.log


def run(by: Caller, name: str) -> Generator[Any, Any, Any]:
    """Reserve an item and commit it; return it as done."""
    item = yield from reserve.reserve(by.queue(name), lease=None, wait=None, on_invalid="bury")
    if item is not None:
        yield from settle.commit(by.queue(name), item)
    return item


def hand_on(by: Caller, name: str, to: str) -> Generator[Any, Any, None]:
    """Reserve an item and move it to another queue."""
    context = by.queue(name)
    item = yield from reserve.reserve(context, lease=None, wait=None, on_invalid="bury")
    if item is not None:
        yield from move.move(context, item, move.destination(context, to), Move(to))
