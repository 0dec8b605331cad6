"""Fields of log records for machines: which item, queue and worker a record is about."""

from __future__ import annotations

from typing import Any

from mongoq.data.item import Item


def log_fields(
    item: Item[Any] | None = None,
    *,
    queue: str | None = None,
    id: Any = None,
    worker: str | None = None,
    duration: float | None = None,
) -> dict[str, Any]:
    """Return the ``extra`` of a log record; fields that are not known are left out.

    The names have a prefix, since the attributes of a record belong to all libraries of a process.

    Args:
        item: the item; it gives queue, id and attempt.
        queue: name of the queue, where there is no item.
        id: id of a document, where there is no item.
        worker: name of the worker, as in ``broker.workers()``.
        duration: seconds that something has taken.
    """
    fields: dict[str, Any] = {}
    if item is not None:
        fields = {"mongoq_queue": item.queue, "mongoq_item": str(item.id), "mongoq_attempt": item.attempts}
    if queue is not None:
        fields["mongoq_queue"] = queue
    if id is not None:
        fields["mongoq_item"] = str(id)
    if worker:
        fields["mongoq_worker"] = worker
    if duration is not None:
        fields["mongoq_duration"] = round(duration, 6)
    return fields
