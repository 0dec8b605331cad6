# Generated from mongoq/aio/looking.py by scripts/unasync.py. Do not edit.
"""A queue as a whole: its items, its settings, and deletion."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from bson import ObjectId

from mongoq.drivers.threads.driver import Runner
from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.model.settings import DEFAULT, Default, QueueSettings
from mongoq.protocol import admin
from mongoq.protocol.base import queue_settings
from mongoq.protocol.history import read
from mongoq.protocol.history.read import Counts, Selection
from mongoq.protocol.state.context import QueueContext

__all__ = ["Looking"]

M = TypeVar("M")


class Looking(Runner[QueueContext[M]]):
    """The part of ``Queue`` that reads, configures and purges the queue as a whole."""

    def get(self, id: ObjectId) -> Item[M] | None:
        """Return one item of this queue by its id, live or in history, or ``None`` (``find`` by ``_id``).

        A reserved item has its holder's token, and can be settled with it in place of the holder, which then gets
        ``ReservationLost``. This can free an item that hangs; it is no way to share work.

        Raises:
            PayloadInvalid: the payload does not fit the model; its ``item`` is the raw item. Or another program wrote
                data that cannot be decoded, such as text that is not UTF-8: then ``raw`` is the document in BSON.
        """
        return self._run(read.get, id)

    def peek(self, n: int = 1, *, state: Selection = "ready") -> list[Item[M]]:
        """Return up to ``n`` items of a state in the order of claims (``find``).

        Reserved items have their holders' tokens, as with ``get``. Documents of other programs that cannot be decoded
        are left out; a warning names them, ``get`` raises with their bytes, ``remove`` deletes them.

        Args:
            n: number of items, at most.
            state: ``"ready"``, ``"scheduled"``, ``"reserved"``, ``"expired"``, ``"processed"`` (history, oldest first),
                or ``None`` for all items that are not processed.

        Raises:
            PayloadInvalid: a payload does not fit the model; its ``item`` is the raw item.
        """
        return self._run(read.peek, n, state)

    def size(self, state: Selection = None) -> int:
        """Count the items of a state, or all unprocessed items, in time proportional to them (``aggregate``)."""
        return self._run(read.size, state)

    def counts(self, *, limit: int | None = None) -> Counts:
        """Count the live items by state in one pass (``aggregate``); an item that changes meanwhile may be missed.

        Takes time in proportion to the live items; history costs nothing.

        Args:
            limit: number of items to read, at most.
        """
        return self._run(read.counts, limit)

    def next_when(self) -> datetime | None:
        """Return the time at which the next item is or was due, by its schedule or the end of its lease; else ``None``.

        One ``aggregate`` that reads one index key for each priority in use.
        """
        return self._run(read.find_next_due)

    def remove(self, id: ObjectId) -> bool:
        """Delete an item, live or in history, unless a caller holds it; return whether it was deleted (``delete``).

        Its id is forgotten: pushed again, it is a new item.
        """
        return self._run(read.remove, id)

    def purge(
        self, *, state: Selection = None, where: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> int:
        """Delete the items of a state, all or a selection, and return how many (``delete``).

        ``None`` deletes live items that no caller holds; ``"reserved"`` takes items away from their holders, which get
        ``ReservationLost``; ``"processed"`` empties the history. Remembered ids of deleted items are forgotten: pushed
        again, the items are new. The id of an item that was settled and is not in history stays remembered; ``remove``
        forgets that one.

        Without a limit it is one command, not atomic: a crash of the server leaves the rest. With a limit it is a
        ``find`` of ids and a ``delete`` of them for each 1,000 items: a crash in between leaves the rest as well, and
        so does a lost reply, whose error is raised. Call it again for the rest.

        Args:
            state: as for ``peek``.
            where: only items with a payload that matches this filter, as for ``history``.
            limit: number of items, at most, the first ones in the order of claims; of ``"processed"`` items the oldest.

        Raises:
            FilterInvalid: ``where`` has an operator, a path or a value that is not allowed, or the server refuses it.
            ArgumentInvalid: another argument cannot be used; the message names it, and nothing was deleted.
        """
        return self._run(admin.purge, state, where=where, limit=limit)

    def configure(
        self,
        *,
        lease: Duration | Default = DEFAULT,
        history: Duration | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        dead: str | Default | None = DEFAULT,
        existing: bool = False,
    ) -> QueueSettings:
        """Change the queue's settings for all processes within a second, and return them (``update``).

        Options that are left out stay as they are.

        Args:
            lease: duration of reservations from the next one on, a ``timedelta`` or seconds.
            history: time for which items processed from now on are kept, a ``timedelta`` or seconds; ``None`` deletes
                them.
            max_retries: further runs of an item after the first; ``None`` for no limit.
            dead: the dead queue; ``None`` for none, and no limit of retries.
            existing: apply ``history`` to items in the history too: one ``update`` of all of them, in time proportional
                to their number. A crash after the first command leaves it undone; call it again.

        Raises:
            ArgumentInvalid: an option cannot be used; the message names it, and nothing was written.
        """
        options = {"lease": lease, "history": history, "max_retries": max_retries, "dead": dead}
        return self._run(queue_settings.configure, options, existing=existing)

    def pause(self) -> None:
        """Stop claims of this queue in all processes within a second; pushes go on (``update``, control document)."""
        self._run(queue_settings.set_paused, True)

    def resume(self) -> None:
        """End a pause, in every process within a second (``update`` of a control document)."""
        self._run(queue_settings.set_paused, False)

    def is_paused(self) -> bool:
        """Ask the server whether the queue is paused (``find`` of a control document)."""
        return self._run(queue_settings.is_paused)
