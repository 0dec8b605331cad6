"""Checks of stages with ``format=`` (pandas or Arrow frames), in addition to the checks of any stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mongoq.model.outcomes import Outcome
from mongoq.pipeline.frames.formats import FORMATS, frames_of, kind_name
from mongoq.pipeline.graph.annotations import classes, returned, taken
from mongoq.pipeline.graph.stage import Stage

__all__ = ["format_faults"]


def format_faults(stage: Stage) -> Iterator[str]:
    """Return the faults of the stage's ``format=``, without the stage's name."""
    told: Any = stage.format
    if not isinstance(told, str) or told not in FORMATS:
        yield f"format: {' or '.join(map(repr, FORMATS))}, not {told!r:.60}"
        return
    if stage.join is not None:
        yield "format: a join takes payloads; leave it out, or join first, and have a batch stage behind that"
    if stage.frame is not None:
        yield "format: the stage takes frames of Spark; leave it out"
    if stage.delivery == "at-most-once":
        yield "delivery: what is run at most once is run item by item, and a frame is made of a batch; leave it out"
    if stage.options.get("batch") is None:
        yield "batch: a frame is made of a batch; say of how many items at most"
    try:
        # Importing the format's module finds a missing package here, and not in the first run.
        kind = frames_of(told).KIND
    except ImportError as error:
        yield f"format: {error}"
        return
    yield from _of_annotations(stage, told, kind)


def _of_annotations(stage: Stage, format: str, kind: type) -> Iterator[str]:
    takes = classes(taken(stage.handler)) or []
    if takes and not any(_may_be(kind, each) for each in takes):
        yield f"format: the handler takes {_names(takes)}, and is given a {kind_name(format)}; change one of them"
    returns = classes(returned(stage.handler)) or []
    if returns and not any(_may_be(kind, each) or _is_listed(each) for each in returns):
        yield f"format: the handler returns {_names(returns)}, where a {kind_name(format)} is due; change one of them"


def _is_listed(kind: type) -> bool:
    """Return whether a handler may return this class in place of a frame; other checks decide about ``None``."""
    return kind is type(None) or (issubclass(kind, list | tuple) and not issubclass(kind, Outcome))


def _may_be(kind: type, annotated: type) -> bool:
    # A protocol is fulfilled by structure, which is not checked here.
    if getattr(annotated, "_is_protocol", False):
        return True
    try:
        return issubclass(kind, annotated) or issubclass(annotated, kind)
    except TypeError:  # for example a TypedDict
        return True


def _names(kinds: list[type]) -> str:
    return " or ".join(
        f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}".removeprefix("builtins.") for kind in kinds
    )
