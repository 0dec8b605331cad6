"""The option ``stage`` of a stream: which stage of a pipeline reads the queue, and what it goes by there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import count, queue_name
from mongoq.model.trail import StageMark
from mongoq.spark.raw_options import RawOptions
from mongoq.sync import Queue

__all__ = ["StageOption"]


@dataclass(frozen=True, slots=True)
class StageOption:
    """A stage, as far as claims and burials have to know it.

    Attributes:
        name: the stage's.
        trail: it records its hops.
        payloads: with the payloads before them.
        dead: the queue of its failures; ``None`` for none.
        limited: it has a limit of its own for retries, which is ``max_retries``.
        max_retries: that limit.
    """

    name: str
    trail: bool = False
    payloads: bool = False
    dead: str | None = None
    limited: bool = False
    max_retries: int | None = None

    @classmethod
    def of(cls, mark: StageMark, overriding: Mapping[str, Any]) -> Self:
        """Return what a handle of a stage was told."""
        limited, dead = "max_retries" in overriding, overriding.get("dead")
        return cls(mark.name, mark.trail, mark.payloads, dead, limited, overriding.get("max_retries"))

    @classmethod
    def parse(cls, given: RawOptions) -> Self | None:
        """Return the option, if it was given; raises ``ArgumentInvalid``."""
        text = given.text("stage")
        if text is None:
            return None
        try:
            return cls(**json.loads(text))._checked()
        except (TypeError, ValueError, AttributeError):
            problem = "a frame stage of a pipeline sets this option; leave it out"
            raise ArgumentInvalid("stage", problem) from None

    def _checked(self) -> Self:
        StageMark(self.name)
        for flag in (self.trail, self.payloads, self.limited):
            if not isinstance(flag, bool):
                raise TypeError
        if self.dead is not None:
            queue_name(self.dead)
        if self.max_retries is not None:
            count(self.max_retries, "max_retries", least=0)
        return self

    def text(self) -> str:
        """Return it as the option says it."""
        return json.dumps(asdict(self))

    def marked(self, queue: Queue[Any]) -> Queue[Any]:
        """Return a handle that goes by the settings of the stage, and whose burials tell of it."""
        overriding: dict[str, Any] = {"dead": self.dead}
        if self.limited:
            overriding["max_retries"] = self.max_retries
        mark = StageMark(self.name, trail=self.trail, payloads=self.payloads)
        return Queue(queue._driver, replace(queue._context, overriding=overriding, stage=mark))
