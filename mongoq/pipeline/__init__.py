"""Pipelines: graphs of queues, and of the stages between them."""

from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.progress import Progress, StageProgress
from mongoq.pipeline.runs import AsyncRun, Run

__all__ = ["AsyncRun", "Pipeline", "Progress", "Run", "StageProgress"]
