"""A stream source that writes down how it is called, one line of JSON for each call, in whichever process that is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

MOST = 2


class Recording(DataSource):
    """Has so many rows as the file ``rows`` in its directory says, and gives out two of them at a time."""

    @classmethod
    def name(cls) -> str:
        return "recording"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: StructType) -> Recorder:
        kind = RecorderOfAvailableNow if self.options.get("knows", "available now") else Recorder
        return kind(Path(self.options["path"]))


class Recorder(DataSourceStreamReader):
    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, call: str, *arguments: Any) -> None:
        with (self.path / "calls").open("a") as calls:
            calls.write(json.dumps([os.getpid(), id(self), call, *arguments]) + "\n")

    def initialOffset(self) -> dict[str, int]:
        self.note("initialOffset")
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(MOST)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self.note("latestOffset", start["n"], type(limit).__name__)
        rows = int((self.path / "rows").read_text())
        return {"n": max(start["n"], min(rows, start["n"] + MOST))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self.note("partitions", start["n"], end["n"])
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        self.note("read", partition.value)
        yield (partition.value,)

    def commit(self, end: dict[str, int]) -> None:
        self.note("commit", end["n"])

    def stop(self) -> None:
        self.note("stop")


class RecorderOfAvailableNow(Recorder, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self) -> None:
        self.note("prepareForTriggerAvailableNow")
