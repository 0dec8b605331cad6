"""Pipelines that are drained over any shell."""

from __future__ import annotations

import mongoq
from tests.shells import Shell

__all__ = ["drain"]


async def drain(shell: Shell, pipeline: mongoq.Pipeline) -> None:
    if shell.kind == "sync":
        pipeline.drain(shell.broker._target, signals=False)
    else:
        await pipeline.drain_async(shell.broker, signals=False)
