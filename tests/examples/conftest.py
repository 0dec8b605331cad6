"""Fixtures of the tests of examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.flights.spark import what_is_missing
from tests.examples.launching import Launch, launching


@pytest.fixture(scope="session")
def runnable_spark() -> None:
    """Skip the test where programs could not start Spark."""
    if missing := what_is_missing():
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
