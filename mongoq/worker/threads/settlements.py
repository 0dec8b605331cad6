# Generated from mongoq/worker/aio/settlements.py by scripts/unasync.py. Do not edit.
"""What a consumer settles: all that has come to its end since the last time, in as few commands as that takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mongoq.errors import BrokerClosed, MongoqError, ReservationLost
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Failed, Release
from mongoq.protocol.at_most_once import pushed_on
from mongoq.protocol.context import context_of
from mongoq.protocol.verdicts import carried_out
from mongoq.worker.backlog import Verdict
from mongoq.worker.judging import ending
from mongoq.worker.threads.stand import REST, Stand

__all__ = ["Settlements"]

logger = logging.getLogger("mongoq.worker")


class Settlements(Stand):
    """The side of a station that settles."""

    def _settle(self) -> None:
        backlog = self.backlog
        while True:
            verdicts = backlog.take_verdicts()
            if verdicts:
                self._settled(verdicts)
                if self._ended and backlog.verdicts:
                    return  # nobody can settle them
            elif self._ended or (backlog.closed and not backlog.held and not self.claiming):
                return
            else:
                self._hands.rest(backlog.settling, REST)

    def _settled(self, verdicts: list[Verdict]) -> None:
        try:
            failed = self._carried_out(verdicts)
        except BaseException as error:
            self.backlog.again(verdicts)
            if not isinstance(error, Exception):
                raise
            self._got_over("settle", error, self.backlog.settling)
            return
        if not failed:
            self._course.well("settle")
            self._let_go(verdicts)
            return
        again = self._sorted(verdicts, dict(failed))
        if again:
            self.backlog.again([verdict for verdict, _ in again])
            errors = [error for _, error in again if error is not None]
            if errors:
                self._got_over("settle", errors[0], self.backlog.settling)

    def _sorted(self, verdicts: list[Verdict], failed: dict[Any, Exception]) -> list[tuple[Verdict, Exception | None]]:
        """Let go of what was settled or lost; returns what is to be settled again, with the server's error if any."""
        again: list[tuple[Verdict, Exception | None]] = []
        gone: list[Verdict] = []
        lost: list[Item[Any]] = []
        for item, outcome in verdicts:
            error = failed.get(id_key(item.id))
            if error is None:
                gone.append((item, outcome))
            elif isinstance(error, ReservationLost):
                logger.warning("item %s of queue %r was not settled: %s", item.id, item.queue, error)
                lost.append(item)
            elif not isinstance(error, MongoqError) or isinstance(error, BrokerClosed):
                again.append(((item, outcome), error))
            elif isinstance(outcome, Failed):
                logger.error("item %s of queue %r is left to its lease: %s", item.id, item.queue, error)
                lost.append(item)
            else:
                logger.error("what became of item %s of queue %r cannot be: %s", item.id, item.queue, error)
                verdict = self.consumer.judge.failure(self.consumer, item, error)
                self._halt_for(item, verdict)
                again.append(((item, verdict), None))
        self.backlog.settled(lost)
        self._let_go(gone)
        return again

    def _carried_out(self, verdicts: list[Verdict]) -> Mapping[Any, Exception]:
        """Settle items, and return the errors of those that were not, by ``id_key``."""
        failed: Mapping[Any, Exception]
        if not self.consumer.pops:
            failed = self._driver.run(carried_out(self.context, verdicts, context_of))
            return failed
        kept = [verdict for verdict in verdicts if isinstance(verdict[1], Release)]
        gone = [verdict for verdict in verdicts if not isinstance(verdict[1], Release)]
        failed = self._driver.run(carried_out(self.context, kept, context_of))
        return {**failed, **(self._driver.run(pushed_on(self.context, gone, context_of)))}

    def _let_go(self, verdicts: list[Verdict]) -> None:
        """Let go of what was settled, and count it by what became of it."""
        self.backlog.settled([item for item, _ in verdicts])
        self._course.settled += len(verdicts)
        is_spent, pops = self.context.settings.is_spent, self.consumer.pops
        self.tally.add([ending(outcome, spent=pops or is_spent(item.attempts)) for item, outcome in verdicts])
        if not self.backlog.held:
            self._course.emptied.ring()
