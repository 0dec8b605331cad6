"""What is wrong with the server is said once, and over once."""

from __future__ import annotations

import logging

import pytest
from pymongo.errors import AutoReconnect, BulkWriteError, ServerSelectionTimeoutError, WriteError

from mongoq.protocol.state.waiter_registry import WaiterRegistry
from mongoq.worker.coordinator import Coordinator

GONE, UNFOUND = AutoReconnect("gone"), ServerSelectionTimeoutError("unfound")


def test_errors_that_come_by_turns_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    course = Coordinator(WaiterRegistry())
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        for error in [GONE, UNFOUND, GONE, UNFOUND, GONE]:
            course.report_error("settle", error)
        course.report_error("claim", GONE)
        course.report_recovery("settle")
        course.report_error("settle", GONE)
    warnings = [record.args for record in caplog.records if "tries again" in record.msg]
    settling = [("settle", "AutoReconnect: gone"), ("settle", "ServerSelectionTimeoutError: unfound")]
    warnings = [(what, text.partition(", Timeout")[0]) for what, text in warnings]
    assert warnings == [*settling, ("claim", "AutoReconnect: gone"), ("settle", "AutoReconnect: gone")]


@pytest.mark.parametrize(
    "error",
    [
        WriteError("failed: secret", 121, {"code": 121, "errInfo": {"value": "secret"}}),
        BulkWriteError({"writeErrors": [{"code": 121, "op": {"payload": "secret"}}]}),
    ],
)
def test_what_the_server_refuses_is_recognised_by_its_code(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mongoq.worker"):
        Coordinator(WaiterRegistry()).report_error("settle", error)
    assert f"{type(error).__name__}, code " in caplog.text
    assert "secret" not in caplog.text


def test_a_worker_rests_for_longer_while_an_error_lasts_whatever_its_kind() -> None:
    course = Coordinator(WaiterRegistry())
    pauses = [course.report_error("claim", error) or 0 for error in [GONE, UNFOUND] * 5]
    assert pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5.0
