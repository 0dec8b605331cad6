"""One face for all shells: the conformance suite is written once, with ``await``, and runs over every one of them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import mongoq


@dataclass(frozen=True)
class Shell:
    """A broker under test, and a plain handle of its collection to look behind it.

    ``kind`` is aio, sync, motor or mongomock. ``raw`` is synchronous in each of them.
    """

    kind: str
    broker: Any
    raw: Any
    clock: mongoq.VirtualClock
    another: Callable[[], Any]

    def queue(self, name: str = "orders", **options: Any) -> Any:
        return self.broker.queue(name, **options)


class Awaited:
    """A synchronous object whose methods can be awaited."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if isinstance(value, mongoq.Queue):
            return Awaited(value)
        if not inspect.ismethod(value):
            return value
        if name in ("queue", "inspect", "select") or (name == "dead_queue" and isinstance(self._target, mongoq.Broker)):
            return lambda *args, **options: Awaited(value(*args, **options))
        if name == "reserved":
            return lambda **options: AwaitedBlock(value(**options))
        if name in ("history", "pages", "export"):
            return lambda **options: _iterated(value, options)
        if name in ("check_import", "check_push"):
            return value
        return lambda *args, **options: _called(value, args, options)

    def __repr__(self) -> str:
        return repr(self._target)


async def _called(method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    plain = [arg._target if isinstance(arg, Awaited) else arg for arg in args]
    named = {name: value._target if isinstance(value, Awaited) else value for name, value in options.items()}
    result = method(*plain, **named)
    return Awaited(result) if isinstance(result, mongoq.Queue) else result


async def _iterated(method: Callable[..., Any], options: dict[str, Any]) -> AsyncIterator[Any]:
    for item in method(**options):
        yield item


class AwaitedBlock:
    """The block of a synchronous ``reserved()``."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> Any:
        return self._block.__enter__()

    async def __aexit__(self, *error: Any) -> Any:
        return self._block.__exit__(*error)
