"""Outcome resolver of a stage: a returned payload goes to the stage's target; outcomes are checked and completed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from mongoq.errors import ArgumentInvalid, OutcomeInvalid, PartnerMissing
from mongoq.model.arguments import Duration
from mongoq.model.encoding.codec import Codec, Wrapped
from mongoq.model.encoding.error_text import name_of, spoken
from mongoq.model.item import Item, StageMark
from mongoq.model.outcomes import (
    Dead,
    Done,
    Drop,
    Failed,
    Fork,
    HandlerOutcome,
    Later,
    Move,
    Release,
    ResolvedOutcome,
    Retry,
    make_unknown_error,
)
from mongoq.model.sequence import check_sequence
from mongoq.model.settings import KEEP, QueueOptions, check_burst, check_options
from mongoq.pipeline.graph.graph import KEEP_SEQUENCE, Graph, Stage
from mongoq.worker.consumer import Consumer
from mongoq.worker.outcome_resolver import HandlerResult, OutcomeResolver, check_entries, check_result, is_success

SEVERAL_TYPES = (list, tuple, set, frozenset)
"""Return types that suggest several items."""


class StageOutcomeResolver(OutcomeResolver):
    """Maps results of a stage's handler to outcomes of its items.

    Args:
        stage: the stage.
        targets: destination of a move, by target: the queue's name, or a handle whose model checks payloads.
        models: models of the targets that are handles, by name.
        untyped: codec of payloads for the other targets.
        most: returns the runs of an item before the stage stops; ``None`` where there is an error queue.

    Attributes:
        width: number of queues that the stage takes items from.
    """

    def __init__(
        self,
        stage: Stage,
        targets: Mapping[str, Any],
        models: Mapping[str, Any],
        untyped: Codec[Any],
        *,
        most: Callable[[], int | None] | None,
    ) -> None:
        self.width = len(stage.sources)
        self._name = stage.name
        self._targets = targets
        self._only = next(iter(targets.values())) if len(targets) == 1 else None
        self._models = models
        self._untyped = untyped
        self._drops = stage.none == "drop"
        self._sequence = stage.sequence
        self._pops = stage.delivery == "at-most-once"
        self._most = None if self._pops else most

    def refusal(self, consumer: Consumer, items: Sequence[Item[Any]]) -> list[ResolvedOutcome] | None:
        """Refuse items that have used all their runs; the last run has ended with its process."""
        most = None if self._most is None else self._most()
        if most is None or all(item.attempts <= most for item in items):
            return None
        # A handler that kills its process never raises: count such runs by the attempts, before another run.
        over = Failed("it has had all its runs, and the last one ended with its process", counted=False, halts=True)
        return [Release() if item.attempts <= most else over for item in items]

    def outcomes(self, consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> list[ResolvedOutcome]:
        """Return the outcomes of the items; in a batch, an invalid entry fails its item alone."""
        if isinstance(returned, BaseException):
            return self.failures(consumer, items, returned)
        if consumer.batch is None:
            return [self._resolve(consumer, items[0], self._read(items[0], returned))]
        if returned is None:
            return [self._resolve(consumer, item, self._read(item, None)) for item in items]
        pairs = zip(items, check_entries(items, returned), strict=True)
        return [self._resolve(consumer, item, self._read_entry(item, entry)) for item, entry in pairs]

    def _read_entry(self, item: Item[Any], entry: Any) -> HandlerResult:
        if isinstance(entry, BaseException):
            return entry
        try:
            return self._read(item, entry)
        except Exception as error:  # encoding runs code of the payload's class, which may raise anything
            return error

    def _read(self, item: Item[Any], returned: Any) -> HandlerOutcome | None:
        """Return the outcome that a returned value means, ``None`` for success; raises ``OutcomeInvalid``."""
        check_result(returned)
        if isinstance(returned, HandlerOutcome):
            return self._complete(item, returned)
        if not self._targets:
            return None
        if returned is None:
            return self._read_none()
        if self._only is None:
            several = ", ".join(map(repr, self._targets))
            raise self._error(
                f"returned a {name_of(returned)}; it has several targets ({several}): return a Move to one, or a Fork"
            )
        if isinstance(returned, SEVERAL_TYPES):
            hint = "for several items return a Fork; if that is the payload, return Move(…, payload=…)"
            raise self._error(f"returned a {name_of(returned)} where one payload is due; {hint}")
        to = self._choose_destination(next(iter(self._targets)), returned)
        encoded = self._encode(to, returned)
        return Move(to, payload=encoded, sequence=self._choose_sequence(item, returned))

    def _encode(self, to: Any, payload: Any) -> Wrapped:
        """Encode a payload at once: a handler may change the object before the item is settled."""
        return Wrapped((self._untyped if isinstance(to, str) else to._context.codec).wrap(payload))

    def _choose_destination(self, target: str, payload: Any) -> Any:
        """Return the destination of a payload. A payload of another model goes without the target's model.

        It is dumped by its own model, and the next stage reads it anew.
        """
        # The target's model would refuse an instance of another class, although its document may fit.
        foreign = isinstance(payload, BaseModel) and type(payload) is not self._models.get(target, type(payload))
        return target if foreign else self._targets[target]

    def _choose_sequence(self, item: Item[Any], payload: Any) -> str | None:
        """Return the sequence that an output enters, by the stage's ``sequence``; raises ``OutcomeInvalid``."""
        if self._sequence is None:
            return None
        if self._sequence == KEEP_SEQUENCE:
            return item.sequence
        try:
            # Frames of Spark return payloads in BSON.
            sequence = self._sequence(self._untyped.unwrap(payload) if isinstance(payload, Wrapped) else payload)
        except Exception as error:  # a function of the user may raise anything
            raise self._error(f"has no sequence for an output: its sequence= raised {spoken(error)}") from error
        try:
            return None if sequence is None else check_sequence(sequence)
        except ArgumentInvalid as invalid:
            hint = "return a text of 1 to 1,024 bytes, such as 'customer-17', or None"
            raise self._error(f"has no sequence for an output: its {invalid}; {hint}") from invalid

    def _read_none(self) -> Drop:
        if self._drops:
            return Drop()
        raise self._error("returned None, most likely for a forgotten return; return Drop(), or declare none='drop'")

    def _complete(self, item: Item[Any], outcome: HandlerOutcome) -> HandlerOutcome:
        """Return an outcome whose moves go to declared targets, with their payloads encoded."""
        match outcome:
            case Move():
                return self._complete_move(item, outcome)
            case Fork():
                return Fork([self._complete_move(item, move) for move in outcome.moves])
            case Dead() | Drop() | Later() | Retry():
                return outcome
            case _:
                raise make_unknown_error(outcome)

    def _complete_move(self, item: Item[Any], move: Move) -> Move:
        name = getattr(move.to, "name", move.to)
        if not isinstance(name, str) or name not in self._targets:
            declared = ", ".join(map(repr, self._targets)) or "none"
            raise self._error(f"moved an item to {name!r:.150}, which is not one of its targets ({declared})")
        # At most once, the item has left its queue before the run, so no stored payload is left to patch.
        if self._pops and move.patch is not None:
            raise self._error("patched an item that it runs at most once, and that is gone; give payload= instead")
        to = self._choose_destination(name, move.payload) if isinstance(move.to, str) else move.to
        payload = move.payload if move.payload is KEEP or not _is_target(to) else self._encode(to, move.payload)
        if self._sequence is None or move.sequence is not None:
            return replace(move, to=to, payload=payload)
        if move.patch is not None and self._sequence != KEEP_SEQUENCE:
            raise self._error("patched an item, and its sequence= is a function of the payload; give Move(sequence=)")
        sequence = self._choose_sequence(item, item.payload if move.payload is KEEP else move.payload)
        return replace(move, to=to, payload=payload, sequence=sequence)

    def _error(self, what: str) -> OutcomeInvalid:
        return OutcomeInvalid(f"stage {self._name!r} {what}")

    # --- failures --------------------------------------------------------------------------------

    def failure(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> ResolvedOutcome:
        """Return the outcome of a failed run; an exception that counts as success sends the item on unchanged."""
        if is_success(consumer, error):
            try:
                sequence = self._choose_sequence(item, item.payload)
                return Done() if self._only is None else Move(self._only, sequence=sequence)
            except OutcomeInvalid as invalid:
                error = invalid
        return self._retry(consumer, item, error, None)

    def give_up(self, item: Item[Any], reason: str) -> Dead | Failed:
        """Return the outcome of an item that cannot be joined: it goes to the error queue, or the stage stops."""
        if self._most is None:
            return Dead(reason)
        return Failed(PartnerMissing(item.id, item.queue, reason), counted=False, halts=True)

    def _resolve(self, consumer: Consumer, item: Item[Any], result: HandlerResult) -> ResolvedOutcome:
        if isinstance(result, Dead) and self._most is not None:
            return Failed(result.reason or "declared dead", counted=False, halts=True)
        return super()._resolve(consumer, item, result)

    def _retry(
        self, consumer: Consumer, item: Item[Any], error: BaseException | str | None, delay: Duration | None
    ) -> Failed:
        most = None if self._most is None else self._most()
        if most is not None and item.attempts >= most:
            return Failed(error, counted=False, halts=True)
        return super()._retry(consumer, item, error, delay)


def _is_target(to: Any) -> bool:
    """Return whether a destination is a name or a handle; the move itself refuses other values."""
    return isinstance(to, str) or hasattr(to, "_context")


def make_stage_handle(graph: Graph, stage: Stage, handle: Any) -> Any:
    """Return a handle that has the stage's own settings and marks its settlements with the stage.

    It stores the settings of the queue that the stage gives, as the consumer of a worker does.
    """
    given = check_options(handle.name, **stage.settings)
    check_burst(given, rate=handle.settings.rate)
    overriding = {"dead": graph.errors_of(stage)}
    if "max_retries" in stage.options and overriding["dead"] is not None:
        overriding |= check_options(handle.name, max_retries=stage.options["max_retries"])
    mark = StageMark(stage.name, trail=bool(graph.trail), payloads=graph.trail == "payloads")
    return handle._with(options=QueueOptions(handle.name, given), overriding=overriding, stage=mark)


def make_resolver(
    graph: Graph, stage: Stage, handle: Any, broker: Any, *, kind: type[StageOutcomeResolver] = StageOutcomeResolver
) -> StageOutcomeResolver:
    """Return the outcome resolver of a stage."""
    models = {target: model for target in stage.targets if (model := find_model(graph, target)) is not None}
    targets = {
        target: broker.queue(target, model=models[target]) if target in models else target for target in stage.targets
    }

    def most() -> int | None:
        retries = stage.options.get("max_retries", handle.settings.max_retries)
        return None if retries is None else retries + 1

    # With an error queue, spent items are buried by the settings of the handle; without one the resolver stops the
    # stage.
    stops = graph.errors_of(stage) is None
    return kind(stage, targets, models, broker._context.untyped, most=most if stops else None)


def find_model(graph: Graph, queue: str) -> Any:
    """Return the model of a queue's payloads if all stages that read the queue have the same model, else ``None``."""
    models = [stage.model_of(queue) for stage in graph.readers(queue)]
    return models[0] if models and all(model is models[0] for model in models) else None
