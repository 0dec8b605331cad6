"""Call of a frame stage's function; the outcome of each item is written, so that it outlives the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from mongoq.errors import OutcomeInvalid
from mongoq.model.encoding.error_text import name_of
from mongoq.pipeline.on_spark.frames.failures import Bisection, cause
from mongoq.pipeline.on_spark.frames.part import FramePart
from mongoq.pipeline.on_spark.frames.rows import DEAD, FATES, HASH, ID, RETRY, ROWS, Encoder, Grouper
from mongoq.spark.types.envelope_columns import CORRUPT, DELIVERY
from mongoq.worker.outcome_resolver import check_result
from mongoq.worker.run_context import RunContext

__all__ = ["ATTEMPTS", "FrameWriter"]

ATTEMPTS = "_attempts"
ROW = ("text string", "to string", "delay double", "payload binary")


class FrameWriter:
    """Calls the function with the frames of batches, and writes ``FATES``.

    Args:
        part: the stage at its queue.
        function: the stage's function.
        columns: columns of the schema, as the function sees them.
        tells_misfits: True if items that do not fit the schema fail; False if the function sees them, by ``_corrupt``.
        stopping: returns whether the query is about to end, so that a failure is not the items' fault.
    """

    def __init__(
        self,
        part: FramePart,
        function: Callable[[DataFrame], Any],
        columns: Sequence[str],
        *,
        tells_misfits: bool,
        stopping: Callable[[], bool],
    ) -> None:
        self._part = part
        self._function = function
        self._columns = columns
        self._tells_misfits = tells_misfits
        self._stopping = stopping
        self._context = RunContext.current()

    def write(self, frame: DataFrame, most: int | None) -> None:
        """Write the outcomes of a frame's items, in place of the outcomes that were written before.

        When the function fails, it is called with parts of the frame, until the items that cause the failure are found.
        The outcomes of the other items are written all the same.

        Args:
            frame: the batch; it is read several times, so the caller should cache it.
            most: items with more attempts have used all their runs, and the function does not get them.

        Raises:
            Exception: the frame cannot be read, or the outcomes cannot be written; no item is the cause.
        """
        file = _File(self._part.path)
        failure = self._failure(frame, most, file)
        if failure is None:
            return
        frame.count()  # raises here if the frame cannot be read, which is not the function's fault
        if failure.fates is not None and _can_be_made(failure.fates):
            raise failure.error  # the outcomes can be computed, but not written
        ids = [row[0] for row in frame.select(ID).sort(ID).collect()]
        self._blame(frame, most, file, ids, failure)

    def _blame(self, frame: DataFrame, most: int | None, file: _File, ids: list[str], failure: _Failure) -> None:
        def within(part: range) -> DataFrame:
            return frame.where(f.col(ID).between(ids[part[0]], ids[part[-1]]))

        # A wrong column is wrong for every item: a search would only call the function again and again.
        found = Bisection(len(ids), alike=issubclass(type(failure.error), OutcomeInvalid))
        failures = {range(len(ids)): failure}
        while (part := found.next()) is not None:
            failed = self._failure(within(part), most, file)
            if failed is None:
                found.record_success()
            else:
                failures[part] = failed
                found.record_failure()
        frame.count()
        for kind, parts in (("fault", found.blamed), ("unblamed", found.put_off)):
            for part in parts:
                file.add(within(part).select(*_fate(kind, failures[part].text)))

    def _failure(self, frame: DataFrame, most: int | None, file: _File) -> _Failure | None:
        """Write the outcomes of a frame's items; or return why the function has failed for it."""
        fates = None
        try:
            fates = self._fates(frame, most)
            file.add(fates)
        except BaseException as error:  # Py4J ends its thread at a BaseException, and Spark waits forever
            if self._stopping():
                raise
            return _Failure(error, cause(error, self._part.place), fates)
        return None

    # --- plans ---------------------------------------------------------------------------------------

    def _fates(self, frame: DataFrame, most: int | None) -> DataFrame:
        own = self._kind(most)
        rows = frame.select(f.col(ID).alias("id"), own.alias("kind"), *_nulls(ROW))
        made = self._call_function(frame.where(own == "item"))
        if made is not None:
            rows = rows.union(made)
        number = self._parts(frame)
        # All rows of an item have to be in one task, one behind the other: Grouper reads them as a stream.
        together = rows.repartition(number, "id").sortWithinPartitions("id")
        return together.mapInArrow(Grouper(self._part.name, sink=self._part.stage.is_sink), FATES)

    def _kind(self, most: int | None) -> Column:
        kind = f.lit("item")
        if most is not None:
            kind = f.when(f.col(ATTEMPTS) > most, "spent").otherwise(kind)
        return f.when(f.col(CORRUPT).isNotNull(), "misfit").otherwise(kind) if self._tells_misfits else kind

    def _call_function(self, given: DataFrame) -> DataFrame | None:
        """Call the function, and return its rows as ``ROWS``; ``None`` where the result has no outcomes of items."""
        stage = self._part.stage
        mark = f.concat(f.lit(f"{stage.name}\0".encode()), f.encode(DELIVERY, "utf-8"))
        columns = given.select(ID, ATTEMPTS, f.sha2(mark, 256).alias(HASH), *self._columns)
        # Py4J calls back in a thread of its own, which lacks the context variables of the caller.
        made = self._context.copy().call(self._function, columns)
        if isinstance(made, Exception):
            raise made
        check_result(made)
        if stage.is_sink and not (isinstance(made, DataFrame) and {RETRY, DEAD} & set(made.columns)):
            return None
        if not isinstance(made, DataFrame):
            raise OutcomeInvalid(f"stage {stage.name!r} returned a {name_of(made)}; return a DataFrame")
        return made.mapInArrow(Encoder(made.schema, stage.name, several=len(stage.targets) > 1), ROWS)

    @staticmethod
    def _parts(frame: DataFrame) -> int:
        return frame.sparkSession.sparkContext.defaultParallelism


@dataclass(frozen=True)
class _Failure:
    """Failure of the function: error, text for items, and the plan of outcomes if the function returned one."""

    error: BaseException
    text: str
    fates: DataFrame | None


class _File:
    """Files with the outcomes of a batch, written part by part."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mode = "overwrite"

    def add(self, fates: DataFrame) -> None:
        """Write outcomes; the first call replaces older files, later calls append."""
        fates.write.mode(self._mode).parquet(self._path)
        self._mode = "append"


def _nulls(fields: Sequence[str]) -> list[Column]:
    return [f.lit(None).cast(type).alias(name) for name, type in (field.split() for field in fields)]


def _fate(kind: str, text: str) -> list[Column]:
    outputs = FATES.split("outputs ")[1]
    told = f.col(ID).alias("id"), f.lit(kind).alias("kind"), f.lit(text).alias("text")
    return [*told, f.lit(None).cast("double").alias("delay"), f.lit(None).cast(outputs).alias("outputs")]


def _can_be_made(fates: DataFrame) -> bool:
    try:
        fates.write.format("noop").mode("overwrite").save()
    except Exception:
        return False
    return True
