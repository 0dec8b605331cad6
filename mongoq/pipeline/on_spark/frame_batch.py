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
from mongoq.pipeline.on_spark.frame_rows import DEAD, FATES, HASH, ID, RETRY, ROWS, Encoder, Grouper
from mongoq.pipeline.on_spark.frame_settler import COUNTS, FramePart, Settler, StageSettings, make_named_error
from mongoq.protocol.coordination.streams import read_notes, write_note
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

    For each batch, the outcomes of its items are written to the path of the part and replace the outcomes there. Then
    the claim is marked with this path, and the items are settled; items without a row come last. A driver that dies
    before the mark calls the function again. A driver that dies after the mark continues with the written outcomes,
    whatever was settled by then.

    Attributes:
        counts: items by how they were settled; grows with each batch.
    """

    def __init__(self, part: FramePart, writing: FrameWriter) -> None:
        self.counts: Counter[str] = Counter()
        self._part = part
        self._writing = writing

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
            claim = broker_at(part.place.of_driver)._run(read_notes, part.consumer, token)
            # The same claim with written outcomes means that the driver died after the mark: do not call the function
            # again, its result may differ.
            if claim.note != part.path or not self._is_there(spark):
                self._writing.write(frame, StageSettings(part).most)
                broker_at(part.place.of_driver)._run(write_note, part.consumer, token, part.path)
        finally:
            frame.unpersist()
        self._settle(spark, token, {id_shown(id): id for id in claim.other_ids})

    def _is_there(self, spark: SparkSession) -> bool:
        try:
            self._fates(spark)
        except AnalysisException:  # the files were removed
            return False
        return True

    def _fates(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(FATES).parquet(self._part.path)

    # --- settling ----------------------------------------------------------------------------------

    def _settle(self, spark: SparkSession, token: ObjectId, other_ids: dict[str, Any]) -> None:
        """Settle the items that have a row, and then the items without a row."""
        counts, halted = self._run_settler(spark, Settler(self._part, token, other_ids, left=False))
        if counts["left"]:
            more, also = self._run_settler(spark, Settler(self._part, token, other_ids, left=True))
            counts, halted = counts + more, [*halted, *also]
        if counts["lost"]:
            sentence = "%d items of stage %r are left out: settled before, as in a batch that is run again, or taken"
            logger.warning(sentence, counts["lost"], self._part.name, extra=log_fields(queue=self._part.source))
        self.counts += Counter({ending: number for ending, number in counts.items() if ending not in TASK_ENDINGS})
        if halted:
            item, text = halted[0]
            id = other_ids[item] if item in other_ids else ObjectId(item)
            raise StageStopped(self._part.name, self._part.source, id) from make_named_error("StageFailed", text)

    def _run_settler(self, spark: SparkSession, settler: Settler) -> tuple[Counter[str], list[tuple[str, str]]]:
        counts: Counter[str] = Counter()
        halted = []
        for ending, number, item, text in self._fates(spark).mapInArrow(settler, COUNTS).collect():
            counts[ending] += number
            if ending == "halted":
                halted.append((item, text))
        return counts, halted


class FrameWriter:
    """Calls the function with the frames of batches, and writes ``FATES``.

    Args:
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
        bisection = Bisection(len(ids), alike=issubclass(type(failure.error), OutcomeInvalid))
        failures = {range(len(ids)): failure}
        while (part := bisection.next()) is not None:
            failed = self._failure(within(part), most, file)
            if failed is None:
                bisection.record_success()
            else:
                failures[part] = failed
                bisection.record_failure()
        frame.count()
        for kind, parts in (("fault", bisection.blamed), ("unblamed", bisection.put_off)):
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
        rows = frame.select(f.col(ID).alias("id"), own.alias("kind"), *_nulls(ROWS.split(", ")[2:]))
        result = self._call_function(frame.where(own == "item"))
        if result is not None:
            rows = rows.union(result)
        number = frame.sparkSession.sparkContext.defaultParallelism
        # All rows of an item have to be in one task, one behind the other: Grouper reads them as a stream.
        together = rows.repartition(number, "id").sortWithinPartitions("id")
        return together.mapInArrow(Grouper(self._part.name, sink=self._part.stage.is_sink), FATES)

    def _kind(self, most: int | None) -> Column:
        kind = f.lit("item")
        if most is not None:
            kind = f.when(f.col(ATTEMPTS) > most, "spent").otherwise(kind)
        return f.when(f.col(CORRUPT).isNotNull(), "misfit").otherwise(kind) if self._tells_misfits else kind

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
    own = f.col(ID).alias("id"), f.lit(kind).alias("kind"), f.lit(text).alias("text")
    return [*own, *_nulls(FATES.split(", ")[3:])]


def _can_be_made(fates: DataFrame) -> bool:
    try:
        fates.write.format("noop").mode("overwrite").save()
    except Exception:
        return False
    return True


class Bisection:
    """Chooses the next part of a frame to try, until each item has succeeded, is blamed, or is put off.

    One failing item costs about two runs for each halving of its frame. When a function fails for all items, no part
    succeeds within a few runs more than that, and all items are blamed. When there are too many failing items to find
    each, the rest is put off without blame.

    Args:
        size: number of items; the frame with all of them has failed.
        alike: True if the failure does not depend on the items, so that all of them are blamed.

    Attributes:
        blamed: parts that cause the failure, as far as it is known; grows with each run.
        put_off: parts that have failed, without knowing which of their items is the cause.
    """

    def __init__(self, size: int, *, alike: bool = False) -> None:
        self.blamed: list[range] = []
        self.put_off: list[range] = []
        self._runs = self._passed = self._failed = 0
        self._depth = max(size - 1, 0).bit_length()
        self._parts: list[range] = []
        self._mixed: list[range] = []
        if alike:
            self.blamed.append(range(size))
        else:
            self._split(range(size))

    def next(self) -> range | None:
        """Return the next items to try, by their positions; ``None`` when nothing is left to find out."""
        if self._parts:
            return self._parts[-1]
        (self.put_off if self._passed else self.blamed).extend(self._mixed)
        self._mixed = []
        return None

    def record_success(self) -> None:
        """Record that the last part has succeeded."""
        self._parts.pop()
        self._runs += 1
        self._passed += 1

    def record_failure(self) -> None:
        """Record that the last part has failed."""
        self._runs += 1
        self._failed += 1
        self._split(self._parts.pop())

    def _split(self, part: range) -> None:
        if len(part) <= 1:
            self.blamed += [part] if part else []
        elif self._is_given_up:
            self._mixed.append(part)
        else:
            half = len(part) // 2
            self._parts += [part[half:], part[:half]]

    @property
    def _is_given_up(self) -> bool:
        # Each success allows two more failures: it shows that parts differ, so that a search makes sense.
        return self._runs >= MAX_RUNS or self._failed > self._depth + EXTRA_FAILURES + 2 * self._passed


def cause(error: BaseException, place: Location) -> str:
    """Return the cause of a failure as JSON, for ``named``: the error raised in a task if any, without credentials."""
    text = text_of(error, MAX_TEXT)
    kind, message = _find_error(text) or (type_name(error), text)
    # The text is Spark's or the user's, and may quote the URI or the password.
    for secret in _secrets(place):
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


def _secrets(place: Location) -> list[str]:
    try:
        password = urlsplit(place.uri).password
    except ValueError:
        password = None
    secrets = [place.uri, password, None if password is None else unquote(password)]
    return [secret for secret in secrets if secret]
