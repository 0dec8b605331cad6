"""Whatever OpenAPI allows, and much that it does not: each answer is one that the description knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mongoq


@pytest.mark.prove
@pytest.mark.parametrize(
    ("mode", "level"), [("POSITIVE", "act"), ("NEGATIVE", "act"), ("POSITIVE", "read"), ("POSITIVE", "none")]
)
def test_each_answer_is_one_that_the_description_knows(
    make_app: Callable[..., Any], queue: mongoq.Queue[Any], mode: str, level: str
) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode, checks

    known = [
        *(checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance),
        *(checks.response_schema_conformance, checks.negative_data_rejection),
    ]
    queue.push(1)
    schema = schemathesis.openapi.from_dict(make_app().openapi())  # a caller without access does not get it
    schema.app = make_app(access=lambda _request: level)
    calls = [each.ok() for each in schema.get_all_operations()]
    assert len(calls) == 32
    unsatisfiable, before = [], queue.size()
    for call in calls:

        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=call.as_strategy(generation_mode=GenerationMode[mode]))
        def send(case: Any) -> None:
            answer = case.call_and_validate(checks=known)
            is_change = case.method.upper() not in ("GET", "HEAD", "OPTIONS")
            if level == "none" or (level == "read" and is_change):
                assert answer.status_code == 403

        try:
            send()
        except Unsatisfiable:  # a call without a body and without parameters: all is allowed
            unsatisfiable.append(call.label)
    assert level == "act" or queue.size() == before
    assert len(unsatisfiable) <= (0 if mode == "POSITIVE" else 7), unsatisfiable
