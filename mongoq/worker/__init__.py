"""Workers: handlers run for the items of queues, with threads or asyncio.

``aio.worker`` is the worker, and ``aio.engine`` runs it: start there; ``threads`` is generated from ``aio``. Each
consumer has a loop (``aio.consumer_loop``) that claims, an item runner and a settler, around a ``backlog`` that decides
without I/O. ``outcome_resolver`` maps what a handler returned or raised to an outcome; ``sources`` calls the generators
of sources.
"""

from mongoq.worker.aio import AsyncJob, AsyncWorker
from mongoq.worker.threads import Job, Worker

__all__ = ["AsyncJob", "AsyncWorker", "Job", "Worker"]
