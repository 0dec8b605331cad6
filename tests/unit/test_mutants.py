"""The list of mutants keeps up with the code: each names a line that is there, once, and tests that are there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS: list[dict[str, Any]] = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_a_mutant_breaks_what_is_there(mutant: dict[str, Any]) -> None:
    assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1
    assert (ROOT / mutant["tests"][0].partition("::")[0]).exists()


def test_no_two_mutants_have_one_name() -> None:
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS)
