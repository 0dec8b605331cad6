"""Pipelines: graphs of queues, and of the stages between them.

``pipeline`` is what users declare stages on: start there. ``declare`` has more decorators, ``graph`` the plain data,
``checks`` what is wrong with it, ``render`` its pictures, ``recipe`` pipelines from files. ``start`` begins a run: by
``run`` in this process, or by ``on_spark`` in Spark's executors. ``frames`` gives batches to functions on pandas or
Arrow.
"""

from mongoq.pipeline.graph.comparison import Difference
from mongoq.pipeline.graph.join_waiters import Waiting
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.run.progress import Progress, SourceProgress, StageProgress
from mongoq.pipeline.run.run import AsyncRun, Run

__all__ = ["AsyncRun", "Difference", "Pipeline", "Progress", "Run", "SourceProgress", "StageProgress", "Waiting"]
