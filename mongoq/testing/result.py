"""What running an item came to."""

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
    """What became of one item of a run.

    Attributes:
        item: the item as it was reserved for the run, so that ``item.attempts`` counts it.
        outcome: ``"done"``, committed; ``"retry"``, rolled back; ``"dead"``, buried, by ``Dead`` or beyond its
            retries; ``"dropped"``, by ``Drop``; ``"moved"``, by ``Move``, or on to the target of its stage;
            ``"screened"``: it did not match its stage's ``where``, was not run, and was settled as ``otherwise`` says;
            or ``"lost"``: somebody else had taken or settled it by the end of the run, perhaps the handler itself, and
            nothing was changed.
        returned: what the handler returned; of a batch handler the entry for this item.
        error: what the handler raised, or gave its outcome as the error; why the outcome it returned could not be
            carried out; the ``ReservationLost`` of a lost item; else ``None``.
        delay: how long an item that is to be retried waits.
        to: the queue that a moved or a dead item went to.
    """

    item: Item[Any]
    outcome: ResultOutcome
    returned: Any = None
    error: BaseException | str | None = None
    delay: timedelta | None = None
    to: str | None = None

    def __repr__(self) -> str:
        """Say it in one line, as an assertion that fails shows it."""
        parts = [f"{self.outcome!r}, run {self.item.attempts} of {self.item.queue!r} with {self.item.payload!r}"]
        parts += [f"returned={self.returned!r}"] * (self.returned is not None)
        parts += [f"error={self.error!r}"] * (self.error is not None)
        parts += [f"delay={self.delay}"] * (self.delay is not None)
        parts += [f"to={self.to!r}"] * (self.to is not None)
        return f"Result({', '.join(parts)})"


class NeverIdle(MongoqError):
    """The queues were not empty after as many runs as the limit allows: most likely items go round in a circle.

    Attributes:
        limit: how many runs there were.
        results: what they came to, and the run that was one too many.
    """

    def __init__(self, limit: int, results: Sequence[Result]) -> None:
        super().__init__(
            f"there was still something to run after {limit} runs: {results[-1]!r}; a handler may push "
            f"or move items in a circle, or retry without delay; give a larger limit= if there is that much to do"
        )
        self.limit = limit
        self.results = list(results)
