"""Whatever OpenAPI allows, and much that it does not: each answer is one that the description knows."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

import mongoq
from mongoq.web import Level, create_app
from mongoq.web.problems import SAFE_METHODS

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
CALLS = 32


@pytest.mark.prove
@pytest.mark.parametrize("level", ["act", "read", "none"])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
def test_each_answer_is_one_that_the_description_knows(
    broker: mongoq.Broker, queue: mongoq.Queue[Any], mode: GenerationMode, level: Level
) -> None:
    queue.push(1)
    app = create_app(broker, access=lambda _request: level)
    described = create_app(broker).openapi()  # a caller without access does not get it from the app
    schema = schemathesis.openapi.from_dict(described)
    schema.app = app
    calls = [each.ok() for each in schema.get_all_operations()]
    assert len(calls) == CALLS
    unsatisfiable, before = [], queue.size()
    for call in calls:

        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=call.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            answer = case.call_and_validate(checks=CHECKS)
            is_change = case.method.upper() not in SAFE_METHODS
            if level == "none" or (level == "read" and is_change):
                assert answer.status_code == 403

        try:
            send()
        except Unsatisfiable:  # a call without a body and without parameters: all is allowed
            unsatisfiable.append(call.label)
    assert level == "act" or queue.size() == before
    assert len(unsatisfiable) <= (0 if mode is GenerationMode.POSITIVE else 7), unsatisfiable
