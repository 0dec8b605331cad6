"""The thread that keeps what a query holds, in the driver's process: nobody else extends leases during a batch."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

from bson import ObjectId

from mongoq.protocol.coordination import streams
from mongoq.protocol.coordination.streams import ForeignLease, StreamRun, TakenOver
from mongoq.protocol.settle.held_items import cut_ids, extend_held
from mongoq.sync import Broker

__all__ = ["LeaseKeeper"]

logger = logging.getLogger("mongoq.spark")

TURNS = 4
"""How often a lease of the run is extended in its length."""
PATIENCE = 2.0
"""Seconds that giving back the run may take when it ends."""


class LeaseKeeper:
    """Extends the lease of a run, and those of the items that it holds, until it is ended or the run is lost.

    A daemon: it ends with its process. What goes wrong on the network is tried again at its next turn, several times
    before a lease ends.

    Attributes:
        lost: who has the run instead, once it is lost.
    """

    def __init__(self, broker: Broker, run: StreamRun, lease: timedelta) -> None:
        self.lost: ForeignLease | None = None
        self._broker = broker
        self._run = run
        self._lease = lease
        self._pause = min(run.length, lease).total_seconds() / TURNS
        self._token: ObjectId | None = None
        self._due = 0.0
        self._extended = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mongoq-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it was told to end."""
        return self._ended.is_set()

    def end(self) -> None:
        """Let the thread end, and another process have the run at once, if that can be done within two seconds.

        Several threads may call it, and each returns when that is done.
        """
        self._ended.set()
        self._thread.join(PATIENCE)

    def _work(self) -> None:
        while not self._ended.wait(self._pause):
            try:
                self._turn()
            except TakenOver as taken:
                self.lost = taken.held
                return
            except Exception as error:
                logger.warning("leases of consumer %r could not be extended just now: %r", self._run.consumer, error)
        try:
            self._broker._driver.run(streams.given_back(self._broker._context, self._run))
        except Exception as error:
            logger.debug("the run of consumer %r was not given back: %r", self._run.consumer, error)

    def _turn(self) -> None:
        self._keep_run()
        claim = self._run.claim
        if claim is None or claim.ids is None:
            return
        third = self._lease.total_seconds() / 3
        if claim.token != self._token:  # claimed since the last turn
            self._token, self._due = claim.token, time.monotonic() + third
        if time.monotonic() < self._due:
            return
        for chunk in cut_ids(claim.ids):
            self._broker._driver.run(extend_held(self._broker._context, claim.token, chunk, self._lease))
            if self._ended.is_set():
                return
            if time.monotonic() - self._extended > self._pause:
                self._keep_run()
        self._due = time.monotonic() + third

    def _keep_run(self) -> None:
        self._broker._driver.run(streams.extended(self._broker._context, self._run))
        self._extended = time.monotonic()
