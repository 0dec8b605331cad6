"""Pipelines: graphs of queues and of the stages between them.

``pipeline`` has the class that users declare stages on, and start runs by: start there. ``declare`` has the
decorators, ``graph`` the plain data, ``checks`` its faults, ``render`` its diagrams and differences, ``recipe``
pipelines from files. ``run`` runs a pipeline in this process, ``on_spark`` in Spark's executors. ``frames`` turns
batches into pandas or Arrow frames.
"""

from mongoq.pipeline.graph.graph import Waiting
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.render import Difference
from mongoq.pipeline.run.run import AsyncRun, Progress, Run, SourceProgress, StageProgress

__all__ = ["AsyncRun", "Difference", "Pipeline", "Progress", "Run", "SourceProgress", "StageProgress", "Waiting"]
