"""Several callers at once, one command of one of them at a time: what two commands leave open is met in every order."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

import mongoq

__all__ = ["Caller", "Callers"]

CALLERS = 3
IDS = 2
QUEUES: dict[str, float | None] = {"orders": None, "kept": 0.001}
"""Without history, and with one that is over long before the ids are forgotten."""
STUCK_SECONDS = 5
"""A command that takes longer waits for what another caller has begun."""


class Gate(CommandListener):
    """Holds the commands of a thread until each may be sent."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.allowed = self.held = 0

    def started(self, event: Any) -> None:
        if threading.current_thread() is not self.thread:
            return
        with self.changed:
            self.held += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.allowed >= self.held)

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


class Caller:
    """A process that makes one call at a time.

    Attributes:
        busy: True from the start of a call until its result is taken.
    """

    def __init__(self, uri: str, database: str) -> None:
        self._gate = Gate()
        self._client: MongoClient[Any] = MongoClient(uri, tz_aware=True, event_listeners=[self._gate])
        self._raw = self._client[database]["mongoq"]
        self._answer: list[Any] = []
        self._error: BaseException | None = None
        self._ended = True
        self.busy = False

    def connect(self, clock: mongoq.VirtualClock) -> None:
        """Begin anew, and do what a process does once, so that commands of calls are few."""
        self.broker = mongoq.Broker(self._raw, clock=clock)
        for name in QUEUES:
            self.broker.queue(name).pop()

    def close(self) -> None:
        self._client.close()

    def begin(self, call: Callable[[], Any]) -> None:
        self._answer, self._error, self._ended, self.busy = [], None, False, True
        gate = self._gate
        gate.allowed = gate.held = 0
        gate.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        gate.thread.start()
        self._wait()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._answer.append(call())
        except BaseException as error:
            self._error = error
        finally:
            with self._gate.changed:
                self._ended = True
                self._gate.changed.notify_all()

    def step(self) -> Any:
        """Send one command; returns what the call returned if this was its last one."""
        with self._gate.changed:
            self._gate.allowed = self._gate.held
            self._gate.changed.notify_all()
        self._wait()
        return self.result()

    def _wait(self) -> None:
        """Wait until the next command is held, or the call has ended, or one is stuck behind those of others."""
        gate = self._gate
        with gate.changed:
            gate.changed.wait_for(lambda: self._ended or gate.held > gate.allowed, timeout=STUCK_SECONDS)

    def result(self) -> Any:
        """Return what the call returned, or None while it is under way."""
        if not self._ended:
            return None
        self.busy = False
        if self._error is not None:
            raise self._error
        [answer] = self._answer
        return answer


@contextmanager
def callers(uri: str, database: str) -> Iterator[list[Caller]]:
    """Callers with a client of its own each, which serve one story after the other."""
    made = [Caller(uri, database) for _ in range(CALLERS)]
    try:
        yield made
    finally:
        for caller in made:
            caller.close()


class Callers:
    """Callers push, pop, settle and replay the same ids. Whatever the order, each id is handed out for good once.

    Attributes:
        log: what happened, to be read when it went wrong.
        pushed: the payloads of the pushes that were begun.
        done: how often each payload was handed out for good.
    """

    def __init__(self, raw: Any, made: list[Caller], chance: random.Random) -> None:
        raw.delete_many({"q": {"$exists": True}})
        self.log: list[str] = []
        self.pushed: set[str] = set()
        self.done: Counter[str] = Counter()
        self._chance = chance
        clock = mongoq.VirtualClock(datetime.now(UTC))
        self._callers = made
        self._ids = {name: [ObjectId() for _ in range(IDS)] for name in QUEUES}
        for caller in made:
            caller.connect(clock)
        broker = made[0].broker
        for name, history in {**QUEUES, "source": 3600.0}.items():
            broker.queue(name, history=history, max_retries=None).resume()
        broker.queue("source").push("copy")
        broker.queue("source").pop()

    def tell(self, steps: int) -> None:
        """Let some caller begin a call, or send the next command of the one that it has begun, so many times."""
        for _ in range(steps):
            by = self._chance.choice(self._callers)
            if by.busy:
                self._step(by)
            else:
                self._begin(by)

    def _begin(self, by: Caller) -> None:
        name, number = self._chance.choice([*QUEUES]), self._chance.randrange(IDS)
        id, payload, queue = self._ids[name][number], f"{name} {number}", by.broker.queue(name)
        call = self._chance.choice(["push", "push", "keyed", "push_many", "replay", "pop", "pop", "pop", "run", "move"])
        self.log.append(f"{self._callers.index(by)} begins {call} {payload}")
        if call == "push":
            self.pushed.add(payload)
            by.begin(lambda: queue.push(payload, id=id))
        elif call == "keyed":
            on_duplicate: Any = self._chance.choice(["keep", "replace"])
            self.pushed.add(payload)
            by.begin(lambda: queue.push(payload, id=id, key=payload, on_duplicate=on_duplicate))
        elif call == "push_many":
            payloads = [f"{name} {each}" for each in range(IDS)]
            self.pushed |= set(payloads)
            by.begin(lambda: queue.push_many(payloads, ids=self._ids[name]))
        elif call == "replay":
            by.begin(lambda: by.broker.queue("source").replay(to=name, once=3600))
        elif call == "pop":
            by.begin(queue.pop)
        elif call == "run":
            by.begin(lambda: run(queue))
        else:
            to = self._chance.choice(["orders", "next"])
            by.begin(lambda: hand_on(queue, to))
        self._end(by, by.result())

    def _step(self, by: Caller) -> None:
        self.log.append(f"{self._callers.index(by)} sends its next command")
        self._end(by, by.step())

    def _end(self, by: Caller, answer: Any) -> None:
        if isinstance(answer, mongoq.Item):
            self.done[answer.payload] += 1
            self.log.append(f"{self._callers.index(by)} has {answer.payload}")

    def end(self) -> None:
        """Let all calls end, take what is left, and compare."""
        while any(by.busy for by in self._callers):
            for by in self._callers:
                if by.busy:
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


def run(queue: mongoq.Queue[Any]) -> Any:
    """Reserve an item and commit it; return it as done."""
    item = queue.reserve()
    if item is not None:
        queue.commit(item)
    return item


def hand_on(queue: mongoq.Queue[Any], to: str) -> None:
    """Reserve an item and move it to another queue."""
    item = queue.reserve()
    if item is not None:
        queue.move(item, to)
