# Generated from mongoq/worker/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The asynchronous worker. ``mongoq.worker.threads`` is generated from it by ``scripts/unasync.py``."""

from mongoq.worker.threads.item_runner import Job
from mongoq.worker.threads.worker import Worker

__all__ = ["Job", "Worker"]
