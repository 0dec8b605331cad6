"""Pipelines: graphs of queues, and of the stages between them."""

from mongoq.pipeline.comparison import Difference
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.progress import Progress, SourceProgress, StageProgress
from mongoq.pipeline.runs import AsyncRun, Run
from mongoq.pipeline.waiting import Waiting

__all__ = ["AsyncRun", "Difference", "Pipeline", "Progress", "Run", "SourceProgress", "StageProgress", "Waiting"]
