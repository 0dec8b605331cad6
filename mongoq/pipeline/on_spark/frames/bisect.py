"""Which items of a frame are the cause of its failure: found by trying halves of it, halves of these, and so on."""

from __future__ import annotations

__all__ = ["Bisection"]

MOST = 100
"""Runs, at most, before what is left is tried as it stands."""
FRUITLESS = 4
"""Failures beyond those that lead to one item, before which something has to have passed."""


class Bisection:
    """Says which part of a frame to try next, until each of its items has passed, or is blamed, or is put off.

    One item that fails costs about two runs for each time that its frame can be halved. A function that fails for all
    items is told by that nothing passes, after a few more runs than that; then all are blamed. When there are too many
    failures to be told apart, what was not is put off, unblamed.

    Args:
        size: how many items there are; the whole of them has failed.
        alike: it fails in the same way whatever it is called with, so that all are to blame.

    Attributes:
        blamed: those that are the cause, as far as that can be told.
        put_off: those of parts that have failed, of which nobody knows which.
    """

    def __init__(self, size: int, *, alike: bool = False) -> None:
        self.blamed: list[range] = []
        self.put_off: list[range] = []
        self._runs = self._passed = self._failed = 0
        self._depth = max(size - 1, 0).bit_length()
        self._parts: list[range] = []
        self._mixed: list[range] = []
        if alike:
            self.blamed.append(range(size))
        else:
            self._split(range(size))

    def next(self) -> range | None:
        """Return the items to try, by their places; ``None`` when there is nothing left to find out."""
        if self._parts:
            return self._parts[-1]
        (self.put_off if self._passed else self.blamed).extend(self._mixed)
        self._mixed = []
        return None

    def passed(self) -> None:
        """Take note that these have passed."""
        self._parts.pop()
        self._runs += 1
        self._passed += 1

    def failed(self) -> None:
        """Take note that they have failed."""
        self._runs += 1
        self._failed += 1
        self._split(self._parts.pop())

    def _split(self, part: range) -> None:
        if len(part) <= 1:
            self.blamed += [part] if part else []
        elif self._is_given_up:
            self._mixed.append(part)
        else:
            half = len(part) // 2
            self._parts += [part[half:], part[:half]]

    @property
    def _is_given_up(self) -> bool:
        return self._runs >= MOST or self._failed > self._depth + FRUITLESS + 2 * self._passed
