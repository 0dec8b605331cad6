"""What is wrong with the server is said once, and over once."""

from __future__ import annotations

import logging

import pytest
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from mongoq.protocol.hub import Hub
from mongoq.worker.course import Course

GONE, UNFOUND = AutoReconnect("gone"), ServerSelectionTimeoutError("unfound")


def test_errors_that_come_by_turns_are_told_once_each(caplog: pytest.LogCaptureFixture) -> None:
    course = Course(Hub())
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        for error in [GONE, UNFOUND, GONE, UNFOUND, GONE]:
            course.trouble("settle", error)
        course.trouble("claim", GONE)
        course.well("settle")
        course.trouble("settle", GONE)
    told = [(record.args[0], type(record.args[1])) for record in caplog.records if "tries again" in record.msg]
    settling = [("settle", AutoReconnect), ("settle", ServerSelectionTimeoutError)]
    assert told == [*settling, ("claim", AutoReconnect), ("settle", AutoReconnect)]


def test_a_worker_rests_for_longer_while_an_error_lasts_whatever_its_kind() -> None:
    course = Course(Hub())
    pauses = [course.trouble("claim", error) or 0 for error in [GONE, UNFOUND] * 5]
    assert pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5.0
