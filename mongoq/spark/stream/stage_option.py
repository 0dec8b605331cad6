"""Option ``stage`` of a stream: the stage of a pipeline that reads the queue, with its settings."""

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
    """Settings of a stage that claims and burials need.

    Attributes:
        name: name of the stage.
        trail: True if it records its hops.
        payloads: True if hops are recorded with the payloads before them.
        dead: queue of its failures; ``None`` for none.
        limited: True if it has its own limit of retries, ``max_retries``.
        max_retries: this limit.
    """

    name: str
    trail: bool = False
    payloads: bool = False
    dead: str | None = None
    limited: bool = False
    max_retries: int | None = None

    @classmethod
    def of(cls, mark: StageMark, overriding: Mapping[str, Any]) -> Self:
        """Return the settings of a stage's handle."""
        limited, dead = "max_retries" in overriding, overriding.get("dead")
        return cls(mark.name, mark.trail, mark.payloads, dead, limited, overriding.get("max_retries"))

    @classmethod
    def parse(cls, given: RawOptions) -> Self | None:
        """Return the option, or ``None``; raises ``ArgumentInvalid``."""
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
        """Return the value of the option, as text."""
        return json.dumps(asdict(self))

    def marked(self, queue: Queue[Any]) -> Queue[Any]:
        """Return a handle with the settings of the stage, whose burials name the stage."""
        overriding: dict[str, Any] = {"dead": self.dead}
        if self.limited:
            overriding["max_retries"] = self.max_retries
        mark = StageMark(self.name, trail=self.trail, payloads=self.payloads)
        return Queue(queue._driver, replace(queue._context, overriding=overriding, stage=mark))
