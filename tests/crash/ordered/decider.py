"""A process that decides about the dead letters of a queue that they hold: each is replayed, or taken away."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

import mongoq
from tests.crash.ordered.line import LEASE, QUEUE
from tests.crash.ordered.notes import Notes

__all__ = ["decide_letters"]

PAUSE = (0.0, 0.3)
LOOKED_AT = 30
ERRORS = (PyMongoError, mongoq.ReservationLost, mongoq.BatchIncomplete)


def decide_letters(uri: str, database: str, ledger: str, seed: int) -> None:
    """Decide until the end of this process."""
    chance, notes = random.Random(seed), Notes(Path(ledger), seed)
    letters = mongoq.Broker(MongoClient[Any](uri)[database]["mongoq"]).queue(QUEUE).dead
    while True:
        time.sleep(chance.uniform(*PAUSE))
        try:
            if chance.random() < 0.2:
                _settle_first(letters, notes)
                continue
            for letter in letters.peek(LOOKED_AT):
                way = chance.choice([_replay, _replay, _remove, _send_away, _leave])
                way(letters, letter, notes)
        except ERRORS:
            time.sleep(0.05)


def _replay(letters: Any, letter: mongoq.Item[Any], notes: Notes) -> None:
    if letters.replay(ids=[letter.id]).pushed:
        notes.write("replayed", [letter.payload["serial"]])


def _remove(letters: Any, letter: mongoq.Item[Any], notes: Notes) -> None:
    _take_away(lambda: letters.remove(letter.id), letter, notes)


def _send_away(letters: Any, letter: mongoq.Item[Any], notes: Notes) -> None:
    _take_away(lambda: letters.replay(ids=[letter.id], to="elsewhere").pushed == 1, letter, notes)


def _leave(letters: Any, letter: mongoq.Item[Any], notes: Notes) -> None:
    """Let it hold its sequence for now."""


def _settle_first(letters: Any, notes: Notes) -> None:
    letter = letters.reserve(lease=LEASE)
    if letter is not None:
        _take_away(lambda: letters.commit(letter) is None, letter, notes)


def _take_away(act: Callable[[], bool], letter: mongoq.Item[Any], notes: Notes) -> None:
    notes.write("remove", [letter.payload["serial"]])
    if act():
        notes.write("removed", [letter.payload["serial"]])
