"""Parts of a recipe, and the keys of each part. Most values are checked later, with the graph."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mongoq.model.policy import Exponential, Fixed, Linear, RetryPolicy
from mongoq.model.settings import DEFAULT
from mongoq.pipeline.graph.source import BATCH, LEASE
from mongoq.pipeline.graph.stage import ITEMS
from mongoq.worker.consumer import PREFETCH_BYTES

__all__ = [
    "OPTIONS",
    "POLICIES",
    "FramePart",
    "JoinPart",
    "MovePart",
    "Part",
    "PipelinePart",
    "PolicyPart",
    "SourcePart",
    "StagePart",
    "sentence",
]


class Part(BaseModel):
    """Base of the parts: a mapping with a fixed set of keys."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys that a part may have."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    def given(self) -> dict[str, Any]:
        """Return the keys that the recipe has, with their values; defaults are left out."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class PipelinePart(Part):
    """The whole recipe: a pipeline."""

    name: Any
    errors: Any = None
    inputs: Any = None
    outputs: Any = ()
    trail: Any = False
    sources: list[Any] = []
    stages: list[Any]


class SourcePart(Part):
    """One source."""

    name: Any = None
    to: Any
    handler: str
    batch: Any = BATCH
    every: Any = None
    lease: Any = LEASE


class StagePart(Part):
    """One stage; without ``to`` it is a sink."""

    name: Any = None
    source: Any = Field((), alias="from")
    to: Any = ()
    handler: str
    model: Any = None
    join: Any = None
    frame: Any = None
    where: Any = None
    otherwise: Any = None
    delivery: Any = "exactly-once"
    format: Any = None
    none: Any = "error"
    errors: Any = DEFAULT
    shared: Any = False
    concurrency: Any = None
    prefetch: Any = None
    prefetch_bytes: Any = PREFETCH_BYTES
    lease: Any = None
    retry: Any = None
    max_retries: Any = None
    success_on: Any = None
    max_time: Any = None
    on_timeout: Any = "log"
    batch: Any = None
    probe: Any = None


class JoinPart(Part):
    """Options of a join."""

    on: Any
    timeout: Any = None
    missing: Any = "error"
    late: Any = "error"


class FramePart(Part):
    """Options of a stage on Spark frames."""

    columns: Any = Field(None, alias="schema")
    items: Any = ITEMS
    partitions: Any = None


OPTIONS = (
    *("concurrency", "prefetch", "prefetch_bytes", "lease", "max_retries", "max_time", "on_timeout", "batch", "probe"),
)
"""Options of a consumer that a recipe holds as plain values."""


class MovePart(Part):
    """A move for items that do not match the filter."""

    to: Any
    delay: Any = None
    priority: Any = None
    headers: Any = None


class PolicyPart(Part):
    """A retry policy."""

    base: Any = None
    cap: Any = None
    jitter: Any = None


class _ExponentialPart(PolicyPart):
    factor: Any = None


POLICIES: dict[str, tuple[type[PolicyPart], type[RetryPolicy]]] = {
    "fixed": (PolicyPart, Fixed),
    "linear": (PolicyPart, Linear),
    "exponential": (_ExponentialPart, Exponential),
}


def sentence(part: type[Part], fault: Any) -> str:
    """Return a fault of a key that pydantic found, as a sentence in mongoq's words."""
    key = ".".join(str(step) for step in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key!r:.60}; it may have {', '.join(part.keys())}"
    if fault["type"] == "missing":
        return f"{key!r} is missing"
    return f"{key}: {fault['msg']}"
