"""Batches of a frame stage: the function's result is made durable first, and only then the items are settled."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from bson import ObjectId
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from mongoq.errors import OutcomeInvalid, StageStopped
from mongoq.model.encoding.error_text import name_of, text_of, type_name
from mongoq.model.envelope import shorten
from mongoq.model.log_fields import log_fields
from mongoq.pipeline.on_spark.frame_settler import (
    COUNTS,
    DEAD,
    FATES,
    HASH,
    ID,
    RETRY,
    ROWS,
    Encoder,
    FramePart,
    Grouper,
    Settler,
    StageSettings,
    make_named_error,
)
from mongoq.protocol_threads.coordination.streams import read_notes, write_note
from mongoq.spark.clients import broker_at
from mongoq.spark.raw_options import Location
from mongoq.spark.types.envelope_columns import CORRUPT, DELIVERY, id_shown
from mongoq.worker.outcome_resolver import check_result
from mongoq.worker.run_context import RunContext

logger = logging.getLogger("mongoq.spark")

TASK_ENDINGS = ("left", "lost", "halted")
"""Kinds of a task's counts that are not outcomes of items."""
ATTEMPTS = "_attempts"
MAX_RUNS = 100
"""Runs of the function, at most; the parts that are left then are not split further."""
EXTRA_FAILURES = 4
"""Failures beyond the halvings down to one item, after which some part has to have succeeded."""
TRACE = "Traceback (most recent call last):"
RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$", re.DOTALL)
TRACE_END = re.compile(r"\n[ \t]++at [\w.$]++\(|\n\n|\nCaused by:|\nDriver stacktrace")
MESSAGE_BYTES = 4096
MAX_TEXT = 4 * 1024 * 1024
"""Characters of Spark's error text that are searched for the error of a task."""
MASK = "…"


class FrameBatches:
    """Processes the batches of a frame stage at one of its queues.

    For each batch, the function is called, and the outcomes of its items are written to the path of the part, in place
    of the outcomes there. Then the claim is marked with this path, and the items are settled; items without a row come
    last. A driver that dies before the mark calls the function again. A driver that dies after the mark continues with
    the written outcomes, whatever was settled by then.

    Args:
        columns: columns of the schema, as the function sees them.
        tells_misfits: True if items that do not fit the schema fail; False if the function sees them, by ``_corrupt``.
        stopping: returns whether the query is about to end, so that a failure is not the items' fault.

    Attributes:
        counts: items by how they were settled; grows with each batch.
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
        self.counts: Counter[str] = Counter()
        self._part = part
        self._function = function
        self._columns = columns
        self._tells_misfits = tells_misfits
        self._stopping = stopping
        self._context = RunContext.current()

    def work_off(self, frame: DataFrame) -> None:
        """Process one batch.

        Raises:
            StageStopped: an item has failed for good, and there is no error queue; the other items are settled.
        """
        spark, part = frame.sparkSession, self._part
        # The frame is read several times: by the first row, by the function, and again when parts of it are tried.
        frame = frame.persist()
        try:
            first = frame.select("_token").head()
            if first is None:
                return  # all items were settled, but the checkpoint of the batch was not written
            token = ObjectId(first[0])
            broker = broker_at(part.place.of_driver)
            claim = broker._run(read_notes, part.consumer, token)
            # The same claim with written outcomes means that the driver died after the mark: do not call the function
            # again, its result may differ.
            if claim.note != part.path or not self._has_fates(spark):
                self._write(frame, StageSettings(part).most)
                broker._run(write_note, part.consumer, token, part.path)
        finally:
            frame.unpersist()
        self._settle(spark, token, {id_shown(id): id for id in claim.other_ids})

    def _has_fates(self, spark: SparkSession) -> bool:
        try:
            self._read_fates(spark)
        except AnalysisException:  # the files were removed
            return False
        return True

    def _read_fates(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(FATES).parquet(self._part.path)

    def _settle(self, spark: SparkSession, token: ObjectId, other_ids: dict[str, Any]) -> None:
        """Settle the items that have a row, and then the items without a row."""
        counts: Counter[str] = Counter()
        halted = []
        for left in (False, True):
            if left and not counts["left"]:
                break
            settler = Settler(self._part, token, other_ids, left=left)
            for ending, number, item, text in self._read_fates(spark).mapInArrow(settler, COUNTS).collect():
                counts[ending] += number
                if ending == "halted":
                    halted.append((item, text))
        if counts["lost"]:
            sentence = "%d items of stage %r are left out: settled before, as in a batch that is run again, or taken"
            logger.warning(sentence, counts["lost"], self._part.name, extra=log_fields(queue=self._part.source))
        self.counts += Counter({ending: number for ending, number in counts.items() if ending not in TASK_ENDINGS})
        if halted:
            item, text = halted[0]
            id = other_ids[item] if item in other_ids else ObjectId(item)
            raise StageStopped(self._part.name, self._part.source, id) from make_named_error("StageFailed", text)

    # --- calls of the function, and their outcomes -------------------------------------------------

    def _write(self, frame: DataFrame, most: int | None) -> None:
        """Write the outcomes of a frame's items, in place of the outcomes that were written before.

        Args:
            frame: the batch; it is read several times, so the caller should cache it.
            most: items with more attempts have used all their runs, and the function does not get them.

        Raises:
            Exception: the frame cannot be read, or the outcomes cannot be written; no item is the cause.
        """
        failure = self._try(frame, most, "overwrite")
        if failure is None:
            return
        frame.count()  # raises here if the frame cannot be read, which is not the function's fault
        if failure.fates is not None:
            try:
                failure.fates.write.format("noop").mode("overwrite").save()
            except Exception:
                logger.debug("the outcomes of a frame cannot be made", exc_info=True)
            else:
                raise failure.error  # the outcomes can be computed, but not written
        self._search(frame, most, failure)

    def _search(self, frame: DataFrame, most: int | None, failure: _Failure) -> None:
        """Write the outcomes of a frame that the function has failed for: those of the items at fault, and the others.

        The function is called with halves of the frame, and halves of these, until the items that cause the failure are
        found. One failing item costs about two runs for each halving. When the function fails for all items, no part
        succeeds within a few runs more than that, and all items are blamed. When there are too many failing items to
        find each, the rest is put off without blame.
        """
        ids = [row[0] for row in frame.select(ID).sort(ID).collect()]

        def within(part: range) -> DataFrame:
            return frame.where(f.col(ID).between(ids[part[0]], ids[part[-1]]))

        parts = [range(len(ids))] if ids else []
        failures = dict.fromkeys(parts, failure)
        blamed, put_off = list[range](), list[range]()
        # A wrong column is wrong for every item: a search would only call the function again and again.
        is_alike = issubclass(type(failure.error), OutcomeInvalid)
        runs = passed = 0
        while parts:
            part = parts.pop()
            if part not in failures:
                runs += 1
                failed = self._try(within(part), most, "append" if passed else "overwrite")
                if failed is None:
                    passed += 1
                    continue
                failures[part] = failed
            # Each success allows two more failures: it shows that parts differ, so that a search makes sense.
            most_failed = (len(ids) - 1).bit_length() + EXTRA_FAILURES + 2 * passed
            half = len(part) // 2
            if is_alike or not half:
                blamed.append(part)
            elif runs >= MAX_RUNS or runs - passed > most_failed:
                put_off.append(part)
            else:
                parts += [part[half:], part[:half]]
        frame.count()
        mode = "append" if passed else "overwrite"
        for kind, failed_parts in (("fault", blamed), ("unblamed" if passed else "fault", put_off)):
            for part in failed_parts:
                own = f.col(ID).alias("id"), f.lit(kind).alias("kind"), f.lit(failures[part].text).alias("text")
                within(part).select(*own, *_nulls(FATES.split(", ")[3:])).write.mode(mode).parquet(self._part.path)
                mode = "append"

    def _try(self, frame: DataFrame, most: int | None, mode: str) -> _Failure | None:
        """Write the outcomes of a frame's items; or return why the function has failed for it."""
        fates = None
        try:
            fates = self._make_fates(frame, most)
            fates.write.mode(mode).parquet(self._part.path)
        except BaseException as error:  # Py4J ends its thread at a BaseException, and Spark waits forever
            if self._stopping():
                raise
            return _Failure(error, cause(error, self._part.place), fates)
        return None

    def _make_fates(self, frame: DataFrame, most: int | None) -> DataFrame:
        """Return the plan of the outcomes: the function's rows beside a row for each item, grouped by item."""
        kind = f.lit("item")
        if most is not None:
            kind = f.when(f.col(ATTEMPTS) > most, "spent").otherwise(kind)
        if self._tells_misfits:
            kind = f.when(f.col(CORRUPT).isNotNull(), "misfit").otherwise(kind)
        rows = frame.select(f.col(ID).alias("id"), kind.alias("kind"), *_nulls(ROWS.split(", ")[2:]))
        result = self._call_function(frame.where(kind == "item"))
        if result is not None:
            rows = rows.union(result)
        number = frame.sparkSession.sparkContext.defaultParallelism
        # All rows of an item have to be in one task, one behind the other: Grouper reads them as a stream.
        together = rows.repartition(number, "id").sortWithinPartitions("id")
        return together.mapInArrow(Grouper(self._part.name, sink=self._part.stage.is_sink), FATES)

    def _call_function(self, frame: DataFrame) -> DataFrame | None:
        """Call the function, and return its rows as ``ROWS``; ``None`` where the result has no outcomes of items."""
        stage = self._part.stage
        mark = f.concat(f.lit(f"{stage.name}\0".encode()), f.encode(DELIVERY, "utf-8"))
        columns = frame.select(ID, ATTEMPTS, f.sha2(mark, 256).alias(HASH), *self._columns)
        # Py4J calls back in a thread of its own, which lacks the context variables of the caller.
        result = self._context.copy().call(self._function, columns)
        if isinstance(result, Exception):
            raise result
        check_result(result)
        if stage.is_sink and not (isinstance(result, DataFrame) and {RETRY, DEAD} & set(result.columns)):
            return None
        if not isinstance(result, DataFrame):
            raise OutcomeInvalid(f"stage {stage.name!r} returned a {name_of(result)}; return a DataFrame")
        return result.mapInArrow(Encoder(result.schema, stage.name, several=len(stage.targets) > 1), ROWS)


@dataclass(frozen=True)
class _Failure:
    """Failure of the function: error, text for items, and the plan of outcomes if the function returned one."""

    error: BaseException
    text: str
    fates: DataFrame | None


def _nulls(fields: Sequence[str]) -> list[Column]:
    return [f.lit(None).cast(type).alias(name) for name, type in (field.split() for field in fields)]


def cause(error: BaseException, place: Location) -> str:
    """Return the cause of a failure as JSON, for ``named``: the error raised in a task if any, without credentials."""
    text = text_of(error, MAX_TEXT)
    kind, message = _find_error(text) or (type_name(error), text)
    # The text is Spark's or the user's, and may quote the URI or the password.
    try:
        password = urlsplit(place.uri).password or ""
    except ValueError:
        password = ""
    for secret in filter(None, (place.uri, password, unquote(password))):
        message = message.replace(secret, MASK)
    return json.dumps([kind, shorten(message, MESSAGE_BYTES)])


def _find_error(text: str) -> tuple[str, str] | None:
    """Return type and message of the error in the last Python traceback of Spark's text; ``None`` without one."""
    _, separator, trace = text.rpartition(TRACE)
    if not separator:
        return None
    lines = TRACE_END.split(trace, 1)[0].lstrip("\n").split("\n")
    at = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), None)
    raised = None if at is None else RAISED.match("\n".join(lines[at:]).strip())
    return None if raised is None else (raised[1], raised[2] or "")
