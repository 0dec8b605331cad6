"""A broker whose concurrent callers share commands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

CALLERS = 40


class Listener(CommandListener):
    """Counts the commands that a client sends, by their name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        self.counts[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


Call = Callable[[], Any]


@dataclass(frozen=True)
class ConcurrentCallers:
    """A broker whose callers share commands, and a way to call it from many of them at once."""

    kind: str
    broker: Any
    commands: Counter[str]
    together: Callable[[Iterable[Call]], Awaitable[list[Any]]]

    def queue(self, **options: Any) -> Any:
        return self.broker.queue("orders", **options)

    async def call(self, call: Call) -> Any:
        """Call by itself; raise what it raises."""
        (result,) = await self.together([call])
        if isinstance(result, BaseException):
            raise result
        return result


async def gathered(calls: Iterable[Call]) -> list[Any]:
    return await asyncio.gather(*(call() for call in calls), return_exceptions=True)


def in_threads(pool: ThreadPoolExecutor) -> Callable[[Iterable[Call]], Awaitable[list[Any]]]:
    async def together(calls: Iterable[Call]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls), return_exceptions=True)

    return together


def failures(results: Iterable[Any]) -> list[Any]:
    return [result for result in results if isinstance(result, BaseException)]


def calls(method: Any, subjects: Iterable[Any], **options: Any) -> list[Call]:
    return [lambda subject=subject: method(subject, **options) for subject in subjects]
