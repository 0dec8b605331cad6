"""Fixtures of the tests of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _write_into_a_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder of its own: a page may write a file by a relative path."""
    monkeypatch.chdir(tmp_path)
