"""Batches of a frame stage: the function's result is made durable first, and only then the items are settled."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from bson import ObjectId
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from mongoq.errors import StageStopped
from mongoq.pipeline.on_spark.frames.failures import make_named_error
from mongoq.pipeline.on_spark.frames.part import FramePart
from mongoq.pipeline.on_spark.frames.rows import FATES
from mongoq.pipeline.on_spark.frames.settle import COUNTS, Settler, StageSettings
from mongoq.pipeline.on_spark.frames.write import FrameWriter
from mongoq.protocol.coordination.streams import ClaimNotes, read_notes, write_note
from mongoq.spark.clients import broker_at
from mongoq.spark.types.envelope_columns import id_shown

__all__ = ["FrameBatches"]

logger = logging.getLogger("mongoq.spark")

OURS = ("left", "lost", "halted")
"""Kinds of a task's counts that are not outcomes of items."""


class FrameBatches:
    """Processes the batches of a frame stage at one of its queues.

    For each batch, the outcomes of its items are written to the path of the part and replace the outcomes there. Then
    the claim is marked with this path, and the items are settled; items without a row come last. A driver that dies
    before the mark calls the function again. A driver that dies after the mark continues with the written outcomes,
    whatever was settled by then.

    Args:
        part: the stage at its queue.
        writing: calls the stage's function.

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
            claim = self._claim(token)
            # The same claim with written outcomes means that the driver died after the mark: do not call the function
            # again, its result may differ.
            if claim.note != part.path or not self._is_there(spark):
                self._writing.write(frame, StageSettings(part).most)
                self._note(token)
        finally:
            frame.unpersist()
        self._settle(spark, token, {id_shown(id): id for id in claim.others})

    def _claim(self, token: ObjectId) -> ClaimNotes:
        broker = broker_at(self._part.place)
        return broker._run(read_notes, self._part.consumer, token)

    def _note(self, token: ObjectId) -> None:
        broker = broker_at(self._part.place)
        broker._run(write_note, self._part.consumer, token, self._part.path)

    def _is_there(self, spark: SparkSession) -> bool:
        try:
            self._fates(spark)
        except AnalysisException:  # the files were removed
            return False
        return True

    def _fates(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(FATES).parquet(self._part.path)

    # --- settling ----------------------------------------------------------------------------------

    def _settle(self, spark: SparkSession, token: ObjectId, others: dict[str, Any]) -> None:
        """Settle the items that have a row, and then the items without a row."""
        told, halted = self._run_settler(spark, Settler(self._part, token, others, left=False))
        if told["left"]:
            more, also = self._run_settler(spark, Settler(self._part, token, others, left=True))
            told, halted = told + more, [*halted, *also]
        if told["lost"]:
            sentence = "%d items of stage %r are left out: settled before, as in a batch that is run again, or taken"
            logger.warning(sentence, told["lost"], self._part.name)
        self.counts += Counter({ending: number for ending, number in told.items() if ending not in OURS})
        if halted:
            item, text = halted[0]
            id = others[item] if item in others else ObjectId(item)
            raise StageStopped(self._part.name, self._part.source, id) from make_named_error("StageFailed", text)

    def _run_settler(self, spark: SparkSession, settler: Settler) -> tuple[Counter[str], list[tuple[str, str]]]:
        told: Counter[str] = Counter()
        halted = []
        for ending, number, item, text in self._fates(spark).mapInArrow(settler, COUNTS).collect():
            told[ending] += number
            if ending == "halted":
                halted.append((item, text))
        return told, halted
