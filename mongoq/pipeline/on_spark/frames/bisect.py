"""Bisection: finds the items of a frame that cause its failure, by halving the parts that fail."""

from __future__ import annotations

__all__ = ["Bisection"]

MOST = 100
"""Runs of the function, at most; the parts that are left then are not split further."""
FRUITLESS = 4
"""Failures beyond the halvings down to one item, after which some part has to have succeeded."""


class Bisection:
    """Chooses the next part of a frame to try, until each item has succeeded, is blamed, or is put off.

    One failing item costs about two runs for each halving of its frame. When a function fails for all items, no part
    succeeds within a few runs more than that, and all items are blamed. When there are too many failing items to find
    each, the rest is put off without blame.

    Args:
        size: number of items; the frame with all of them has failed.
        alike: True if the failure does not depend on the items, so that all of them are blamed.

    Attributes:
        blamed: parts that cause the failure, as far as it is known; grows with each run.
        put_off: parts that have failed, without knowing which of their items is the cause.
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
        """Return the next items to try, by their positions; ``None`` when nothing is left to find out."""
        if self._parts:
            return self._parts[-1]
        (self.put_off if self._passed else self.blamed).extend(self._mixed)
        self._mixed = []
        return None

    def passed(self) -> None:
        """Record that the last part has succeeded."""
        self._parts.pop()
        self._runs += 1
        self._passed += 1

    def failed(self) -> None:
        """Record that the last part has failed."""
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
        # Each success allows two more failures: it shows that parts differ, so that a search makes sense.
        return self._runs >= MOST or self._failed > self._depth + FRUITLESS + 2 * self._passed
