"""The worker; ``aio`` is the source of ``threads``."""

from mongoq.worker.aio.item_runner import AsyncJob
from mongoq.worker.aio.worker import AsyncWorker

__all__ = ["AsyncJob", "AsyncWorker"]
