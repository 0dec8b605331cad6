"""The streaming queries of frame stages: one for each stage and queue.

One query at a time reads the queue of a frame stage, in this process and in others. A query of another process has the
consumer's name under a lease. Spark would end a running query of this process when a second one starts with the same
checkpoint, so the second one is not started.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from bson import ObjectId
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import mongoq.spark
from mongoq.data.arguments import duration
from mongoq.data.encoding.error_text import name_of, text_of, type_name
from mongoq.data.envelope import shorten
from mongoq.data.log_fields import log_fields
from mongoq.data.stream_claim import stream_id
from mongoq.errors import ArgumentInvalid, ConsumerBusy, OutcomeInvalid, StageStopped
from mongoq.pipeline.frames.rows import ATTEMPTS, DEAD, DELIVERY_HASH, ID, RETRY
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.on_spark.frame_settler import (
    COUNTS,
    FATES,
    ROWS,
    Encoder,
    FramePart,
    Grouper,
    Settler,
    StageSettings,
    make_named_error,
)
from mongoq.pipeline.on_spark.task import ENDED, has_ended
from mongoq.pipeline.run.consumers import make_stage_handle
from mongoq.spark.clients import broker_at
from mongoq.spark.errors import ExecutorError
from mongoq.spark.raw_options import Location
from mongoq.spark.stream.stream_options import StageOption
from mongoq.spark.types.convert import PERMISSIVE, too_deep
from mongoq.spark.types.envelope_columns import CORRUPT, DELIVERY, PAYLOAD, id_shown
from mongoq.sync.operations import read_holder, read_notes, write_note
from mongoq.worker.outcome_resolver import check_result
from mongoq.worker.run_context import RunContext

logger = logging.getLogger("mongoq.spark")

BUSY_ERROR = f"{ConsumerBusy.__module__}.{ConsumerBusy.__qualname__}"
"""Name of the error in Spark's text when another process has the consumer."""

_running_queries: dict[tuple[Location, str], FrameQuery] = {}
"""Queries of this process, by place and consumer."""
_lock = threading.Lock()
CHECK_SECONDS = 0.1
SLOW_START = "Python worker failed to connect back"
"""Spark's message when the Python process of a streaming source has not started within 10 s. Spark has no setting for
it (``PythonWorkerFactory`` of Spark 4.2). A busy machine may need longer.
"""
MAX_RESTARTS = 20
OWN_COLUMNS = {
    ID: StringType(),
    "_token": StringType(),
    ATTEMPTS: IntegerType(),
    DELIVERY: StringType(),
    CORRUPT: StringType(),
}
"""Columns that are read in addition to the columns of the schema."""


def _release(key: tuple[Location, str]) -> None:
    with _lock:
        _running_queries.pop(key, None)


def _busy(place: Location, consumer: str) -> ConsumerBusy:
    """Return the error with the owner and the end of the lease, from the control document of the consumer."""
    held = broker_at(place.of_driver)._run(read_holder, stream_id(consumer))
    return ConsumerBusy(consumer, held.by, held.until)


TASK_ENDINGS = ("left", "lost", "halted")
"""Kinds of a task's counts that are not outcomes of items."""
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


class FrameQuery:
    """The streaming query of a frame stage at one of its queues.

    The outcomes of a batch's items are written below the checkpoint before the first item is settled. So a driver that
    is killed and started again with the same checkpoint gives each item the same outcome, once. The checkpoint is a
    folder for this query alone; ``every`` is the number of seconds between the beginnings of two batches.

    Raises:
        ArgumentInvalid: Spark cannot read the schema, or a column has an unsupported type.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: Location,
        graph: Graph,
        stage: Stage,
        source: str,
        *,
        checkpoint: str,
        every: float | None = None,
    ) -> None:
        assert stage.frame is not None
        checkpoint = checkpoint.rstrip("/")
        self._spark = spark
        self._frame = stage.frame
        self._part = FramePart.of(place, graph, stage, source, path=f"{checkpoint}/results")
        self._checkpoint = f"{checkpoint}/query"
        self._interval = f"{round((every or 0) * 1000)} milliseconds"
        schema: Any = stage.frame.schema
        try:
            if schema is None:
                schema = StructType([StructField(PAYLOAD, StringType())])
            elif isinstance(schema, str):
                schema = StructType.fromDDL(schema)
        except Exception as error:  # an error of Spark's parser
            first = str(error).strip().splitlines()[0]
            problem = f"stage {stage.name!r}: Spark cannot read {schema!r:.200}: {first}"
            raise ArgumentInvalid("schema", problem) from None
        if not isinstance(schema, StructType):
            problem = f"columns with names, such as 'carrier string', not {stage.frame.schema!r:.200}"
            raise ArgumentInvalid("schema", f"stage {stage.name!r}: {problem}")
        for field in schema.fields:
            if deep := too_deep(field.name, field.dataType):
                hint = "make it a string, which holds it as JSON"
                raise ArgumentInvalid("schema", f"stage {stage.name!r}: field {deep}; {hint}")
        # The columns of the schema, all nullable, and the columns that settling needs.
        fields = [StructField(each.name, each.dataType, metadata=each.metadata) for each in schema.fields]
        fields = [field for field in fields if field.name != DELIVERY_HASH]
        names = {field.name for field in fields}
        own = (StructField(name, type) for name, type in OWN_COLUMNS.items() if name not in names)
        self._schema = StructType([*fields, *own])
        self._function = stage.handler
        self._columns = [name for name in schema.fieldNames() if name not in (ID, ATTEMPTS, DELIVERY_HASH)]
        # Items that do not fit the schema fail, unless the function sees them, by ``_corrupt``.
        self._tells_misfits = CORRUPT not in schema.fieldNames()
        self._context = RunContext.current()
        self._counts: Counter[str] = Counter()
        self._turn = threading.Lock()
        self._restarts = 0
        self._ending = self._stopping = self._worked = False
        self._failure: BaseException | None = None
        self._query: Any = None

    def __repr__(self) -> str:
        """Return the names of the stage and the queue."""
        return f"<{type(self).__name__} of stage {self.stage!r} at {self._part.source!r}>"

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return self._part.name

    def find_failure(self) -> BaseException | None:
        """Return the error that has ended the query, except a stop: ``StageStopped``, or one of Spark or the server.

        A query that Spark gave too little time to start its Python is started again. It has read and settled nothing. A
        failure within a batch is different: ``_work_off`` has recorded it.
        """
        # In this order: a batch records its failure before the query ends. Nothing runs after Spark has ended.
        is_over = has_ended(self._spark)
        if self._query is None or self._ending or (not is_over and self._query.isActive) or self._failure is not None:
            return self._failure
        if is_over:
            return ExecutorError(ENDED)
        part, error = self._part, self._query.exception()
        if SLOW_START in str(error) and self._restarts < MAX_RESTARTS:
            self._restarts += 1
            logger.warning("%r is started again: Spark waits 10 s for its Python, which needed longer", self)
            try:
                self._start()
            except Exception as failed:  # for example, the session has ended meanwhile
                self._failure = failed
        elif BUSY_ERROR in str(error):
            self._failure = _busy(part.place, part.consumer)
        elif error is not None:
            self._failure = error
        else:
            where = f"stage {part.name!r} at queue {part.source!r}"
            self._failure = ExecutorError(f"the query of {where} was stopped, and not by its run; start the run again")
        return self._failure

    @property
    def counts(self) -> Counter[str]:
        """Number of items settled so far, by how they were settled, in the terms of a worker."""
        return Counter(self._counts)  # a copy, since the thread of a batch may change it

    def start(self) -> None:
        """Start the query; returns when it runs. Errors of its batches are reported by ``find_failure``.

        Raises:
            ConsumerBusy: this process has a query with this consumer already.
            ArgumentInvalid: Spark cannot write to the folder of the checkpoint.
        """
        key = self._part.place, self._part.consumer
        with _lock:
            other = _running_queries.get(key)
            if other is not None and not (other._query is not None and not other._query.isActive):
                raise _busy(*key)
            _running_queries[key] = self
        try:
            self._start()
        except BaseException as error:
            _release(key)
            # An error of Java's files: most likely the checkpoint's folder.
            if isinstance(error, Py4JJavaError) and error.java_exception.getClass().getName().startswith("java.io."):
                problem = f"stage {self._part.name!r}: Spark cannot write there: {error.java_exception.getMessage()}"
                raise ArgumentInvalid("checkpoint", problem) from None
            raise

    def _start(self) -> None:
        mongoq.spark.register(self._spark)
        part, frame = self._part, self._frame
        handle = make_stage_handle(part.graph, part.stage, broker_at(part.place.of_driver).queue(part.source))
        lease = part.stage.options.get("lease")
        options = {
            "uri": part.place.uri,
            "database": part.place.database,
            "collection": part.place.collection,
            "queue": part.source,
            "consumer": part.consumer,
            "maxItems": frame.items,
            "partitions": frame.partitions,
            "mode": PERMISSIVE,
            "missing": "empty",
            "lease": None if lease is None else duration(lease, "lease").total_seconds(),
            "setup": part.place.setup,
            "stage": StageOption.of(handle._context.stage, handle._context.overriding).text(),
        }
        given = {name: str(value) for name, value in options.items() if value is not None}
        reader = self._spark.readStream.format("mongoq").options(**given).schema(self._schema)
        writer = reader.load().writeStream.foreachBatch(self._work_off)
        writer = writer.option("checkpointLocation", self._checkpoint).trigger(processingTime=self._interval)
        self._query = writer.start()

    def stop(self, grace: float) -> None:
        """End the query in good order, and release the items that it holds at once; their attempts are not counted.

        A batch under way goes on for at most ``grace`` seconds. Its items that are not settled by then come back;
        settled items stay settled. This also holds after Spark has ended, because then no query settles anything.
        """
        if self._query is None:
            return
        self._ending = True
        # A batch holds the lock until it is done: the query ends between two batches if the batch is done in time.
        turn = self._turn.acquire(timeout=grace)
        self._stopping = True
        try:
            if not has_ended(self._spark):
                self._query.stop()
        finally:
            if turn:
                self._turn.release()
            _release((self._part.place, self._part.consumer))
            if self._worked:  # otherwise the claim belongs to another query, or there is none
                broker_at(self._part.place.of_driver).release_claims(self._part.consumer)

    def _work_off(self, frame: DataFrame, _number: int) -> None:
        """Process a batch. To Spark a return means that the batch is done, so its remaining items are settled."""
        # In short waits, so that a stopped query does not hang here.
        while not self._turn.acquire(timeout=CHECK_SECONDS):
            self._check_going_on()
        self._worked = True
        try:
            self._check_going_on()
            self._process(frame)
        except BaseException as error:
            if not (self._stopping or isinstance(error, _Ended)):
                self._failure = error
            raise
        finally:
            self._turn.release()

    def _check_going_on(self) -> None:
        if self._ending:
            raise _Ended(f"{self!r} is stopped; this batch comes again")

    # --- batches ---------------------------------------------------------------------------------

    def _process(self, frame: DataFrame) -> None:
        """Process one batch, whose outcomes are made durable first; only then its items are settled.

        For each batch, the function is called, and the outcomes of its items are written to the path of the part, in
        place of the outcomes there. Then the claim is marked with this path, and the items are settled; items without
        a row come last. A driver that dies before the mark calls the function again. A driver that dies after the mark
        continues with the written outcomes, whatever was settled by then.

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
            note, other_ids = broker._run(read_notes, part.consumer, token)
            # The same claim with written outcomes means that the driver died after the mark: do not call the function
            # again, its result may differ.
            is_written = note == part.path
            if is_written:
                try:
                    self._read_fates(spark)
                except AnalysisException:  # the files were removed
                    is_written = False
            if not is_written:
                self._write(frame, StageSettings(part).resolver.most())
                broker._run(write_note, part.consumer, token, part.path)
        finally:
            frame.unpersist()
        self._settle(spark, token, {id_shown(id): id for id in other_ids})

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
        self._counts += Counter({ending: number for ending, number in counts.items() if ending not in TASK_ENDINGS})
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
            if self._stopping:
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
        stage, given = self._part.stage, frame.where(kind == "item")
        mark = f.concat(f.lit(f"{stage.name}\0".encode()), f.encode(DELIVERY, "utf-8"))
        columns = given.select(ID, ATTEMPTS, f.sha2(mark, 256).alias(DELIVERY_HASH), *self._columns)
        # Py4J calls back in a thread of its own, which lacks the context variables of the caller.
        result = self._context.copy().call(self._function, columns)
        if isinstance(result, Exception):
            raise result
        check_result(result)
        is_frame = isinstance(result, DataFrame)
        # What a sink returns says nothing, unless it has outcomes of items.
        if not stage.is_sink or (is_frame and {RETRY, DEAD} & set(result.columns)):
            if not is_frame:
                raise OutcomeInvalid(f"stage {stage.name!r} returned a {name_of(result)}; return a DataFrame")
            encoder = Encoder(result.schema, stage.name, several=len(stage.targets) > 1)
            rows = rows.union(result.mapInArrow(encoder, ROWS))
        number = frame.sparkSession.sparkContext.defaultParallelism
        # All rows of an item have to be in one task, one behind the other: Grouper reads them as a stream.
        together = rows.repartition(number, "id").sortWithinPartitions("id")
        return together.mapInArrow(Grouper(stage.name, sink=stage.is_sink), FATES)


class _Ended(Exception):
    """Ends a batch of a query that was stopped; nothing is wrong with the batch."""


@dataclass(frozen=True)
class _Failure:
    """Failure of the function: error, text for items, and the plan of outcomes if the function returned one."""

    error: BaseException
    text: str
    fates: DataFrame | None


def _nulls(fields: Sequence[str]) -> list[Column]:
    return [f.lit(None).cast(type).alias(name) for name, type in (field.split() for field in fields)]


def cause(error: BaseException, place: Location) -> str:
    """Return the cause of a failure, for ``make_named_error``, as JSON: the error of a task if any, no credentials."""
    text = text_of(error, MAX_TEXT)
    kind, message = type_name(error), text
    # The last Python traceback in Spark's text is that of the error in a task.
    _, separator, trace = text.rpartition(TRACE)
    if separator:
        lines = TRACE_END.split(trace, 1)[0].lstrip("\n").split("\n")
        at = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
        if raised := RAISED.match("\n".join(lines[at:]).strip()):
            kind, message = raised[1], raised[2] or ""
    # The text is Spark's or the user's, and may quote the URI or the password.
    try:
        password = urlsplit(place.uri).password or ""
    except ValueError:
        password = ""
    for secret in filter(None, (place.uri, password, unquote(password))):
        message = message.replace(secret, MASK)
    return json.dumps([kind, shorten(message, MESSAGE_BYTES)])
