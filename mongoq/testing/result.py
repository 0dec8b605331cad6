"""Result of an item's run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from mongoq.errors import MongoqError
from mongoq.model.item import Item

__all__ = ["NeverIdle", "Result", "ResultOutcome"]

ResultOutcome = Literal["done", "retry", "dead", "dropped", "moved", "screened", "lost"]


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Result of one item of a run.

    Attributes:
        item: the item as it was reserved for the run, so that ``item.attempts`` counts it.
        outcome: ``"done"``, committed; ``"retry"``, rolled back; ``"dead"``, buried, by ``Dead`` or after its last
            retry; ``"dropped"``, by ``Drop``; ``"moved"``, by ``Move``, or on to the target of its stage;
            ``"screened"``: it did not match its stage's ``where``, was not run, and was settled by ``otherwise``; or
            ``"lost"``: at the end of the run it had another holder or was settled, perhaps by the handler itself, and
            nothing was changed.
        returned: return value of the handler; of a batch handler the entry for this item.
        error: exception of the handler, or the error in its outcome; or the reason why a returned outcome was
            impossible; or the ``ReservationLost`` of a lost item; else ``None``.
        delay: time until the next run, for ``"retry"``.
        to: queue that a moved or a dead item went to.
    """

    item: Item[Any]
    outcome: ResultOutcome
    returned: Any = None
    error: BaseException | str | None = None
    delay: timedelta | None = None
    to: str | None = None

    def __repr__(self) -> str:
        """Return the result in one line, as a failed assertion shows it."""
        parts = [f"{self.outcome!r}, run {self.item.attempts} of {self.item.queue!r} with {self.item.payload!r}"]
        parts += [f"returned={self.returned!r}"] * (self.returned is not None)
        parts += [f"error={self.error!r}"] * (self.error is not None)
        parts += [f"delay={self.delay}"] * (self.delay is not None)
        parts += [f"to={self.to!r}"] * (self.to is not None)
        return f"Result({', '.join(parts)})"


class NeverIdle(MongoqError):
    """The queues were not empty after ``limit`` runs: most likely items go round in a circle.

    Attributes:
        limit: number of runs.
        results: results of these runs, and of the run beyond the limit.
    """

    def __init__(self, limit: int, results: Sequence[Result]) -> None:
        super().__init__(
            f"there was still something to run after {limit} runs: {results[-1]!r}; a handler may push "
            f"or move items in a circle, or retry without delay; give a larger limit= if there is that much to do"
        )
        self.limit = limit
        self.results = list(results)
