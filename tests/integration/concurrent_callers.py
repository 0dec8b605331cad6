"""A broker whose concurrent callers share commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.integration.commands import Commands

CALLERS = 40

Call = Callable[[], Any]


@dataclass(frozen=True)
class ConcurrentCallers:
    """A broker whose callers share commands, and a way to call it from many of them at once."""

    kind: str
    broker: Any
    commands: Commands
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
