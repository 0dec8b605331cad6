"""The list of mutants keeps up with the code: each names a line that is there, once, and tests that are there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
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


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_every_mutant_has_tests_that_could_fail() -> None:
    selections = sorted({tuple(mutant["tests"]) for mutant in MUTANTS})

    def collected(selection: tuple[str, ...]) -> int:
        command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *selection]
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(collected, selections))
    assert [selection for selection, code in zip(selections, codes, strict=True) if code != 0] == []
