"""Fixtures of the tests of test tools: a virtual broker, and its worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mongoq.testing import VirtualBroker, VirtualWorker


@pytest.fixture
def virtual() -> Iterator[VirtualBroker]:
    with VirtualBroker() as broker:
        yield broker


@pytest.fixture
def worker(virtual: VirtualBroker) -> VirtualWorker:
    return virtual.worker()
