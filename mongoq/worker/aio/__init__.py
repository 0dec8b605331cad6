"""The asynchronous worker. ``mongoq.worker.threads`` is generated from it by ``scripts/unasync.py``."""

from mongoq.worker.aio.item_runner import AsyncJob
from mongoq.worker.aio.worker import AsyncWorker

__all__ = ["AsyncJob", "AsyncWorker"]
