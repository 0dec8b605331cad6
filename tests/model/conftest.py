"""Assertions of the whole folder tell what they compared."""

from __future__ import annotations

import pytest

for module in ("callers", "world", "looking", "producing", "consuming", "replaying", "stories", "past_model"):
    pytest.register_assert_rewrite(f"tests.model.{module}")
