# Generated from mongoq/worker/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The worker; ``aio`` is the source of ``threads``."""

from mongoq.worker.threads.item_runner import Job
from mongoq.worker.threads.worker import Worker

__all__ = ["Job", "Worker"]
