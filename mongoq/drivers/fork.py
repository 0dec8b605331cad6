"""What starts afresh in a forked child."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["register"]


class ResetInChild(Protocol):
    """Something that a forked child must not go on with."""

    def forget(self) -> None:
        """Start afresh."""
        ...


_objects: WeakSet[ResetInChild] = WeakSet()


def register(one: ResetInChild) -> None:
    """Have it forget in every child that is forked while it lives."""
    _objects.add(one)


def _after_fork() -> None:
    for one in list(_objects):
        one.forget()


os.register_at_fork(after_in_child=_after_fork)
