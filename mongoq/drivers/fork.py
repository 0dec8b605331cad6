"""Reset of objects in a forked child."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["register"]


class ResetInChild(Protocol):
    """Object whose state a forked child must not use."""

    def forget(self) -> None:
        """Reset the state in the child."""
        ...


_objects: WeakSet[ResetInChild] = WeakSet()


def register(one: ResetInChild) -> None:
    """Call ``forget`` of an object in every child that is forked while the object lives."""
    _objects.add(one)


def _after_fork() -> None:
    for one in list(_objects):
        one.forget()


os.register_at_fork(after_in_child=_after_fork)
