"""Fixtures of the tests of examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.flights.spark import what_is_missing
from tests.examples.launching import Launch, launching


@pytest.fixture(autouse=True)
def _spark_can_be_started(request: pytest.FixtureRequest) -> None:
    """Skip a test of Spark where programs cannot start it; it is asked then, since that takes a second."""
    if request.node.get_closest_marker("spark") and (missing := what_is_missing()):
        pytest.skip(missing)


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start programs of the examples."""
    with launching() as launch:
        yield launch


@pytest.fixture
def own_uri(uri: str, database: str) -> str:
    """The server's URI with the test's own database."""
    return uri.replace("/?", f"/{database}?")
