"""Workers: handlers run for the items of queues, with threads or asyncio."""

from mongoq.worker.aio import AsyncJob, AsyncWorker
from mongoq.worker.threads import Job, Worker

__all__ = ["AsyncJob", "AsyncWorker", "Job", "Worker"]
