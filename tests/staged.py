"""Handles as the stages of pipelines have them: what they settle tells of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mongoq.model.trail import StageMark
from mongoq.protocol.settle.apply_outcomes import apply_outcomes
from tests.shells import Awaited


def staged(queue: Any, name: str = "enrich", **options: bool) -> Any:
    """Return a handle of the same queue that a stage works with."""
    handle = queue._target if isinstance(queue, Awaited) else queue
    marked = type(handle)(handle._driver, replace(handle._context, stage=StageMark(name, **options)))
    return Awaited(marked) if isinstance(queue, Awaited) else marked


async def settled(queue: Any, *verdicts: Any) -> Mapping[Any, Exception]:
    """Settle items as a worker does: each by its outcome, in few commands."""
    result = queue._driver.run(apply_outcomes(queue._context, verdicts, lambda to: getattr(to, "_context", to)))
    return await result if inspect.isawaitable(result) else result  # type: ignore[no-any-return]
