"""The draw of campaigns for CI."""

from __future__ import annotations

import random

import pytest

from scripts import campaigns


def test_campaigns_of_crashes_run_alone_and_none_is_left_out() -> None:
    tests = ["tests/a.py::a", "tests/crash/b.py::b", "tests/c.py::c", "tests/d.py::d"]
    batches = list(campaigns.cut_batches(tests, 2))
    assert batches == [["tests/crash/b.py::b"], ["tests/a.py::a", "tests/c.py::c"], ["tests/d.py::d"]]


def test_a_seed_brings_the_same_order_back_and_a_failure_ends_the_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run_batch(batch: list[str]) -> bool:
        ran.append(batch)
        return len(ran) % 3 > 0

    monkeypatch.setattr(campaigns, "find_campaigns", lambda: [f"tests/{n}.py::t" for n in range(20)])
    monkeypatch.setattr(campaigns, "run_batch", run_batch)
    seed = str(random.randrange(2**32))
    assert [campaigns.main(["--minutes", "5", "--jobs", "1", "--seed", seed]) for _ in range(2)] == [1, 1]
    assert ran[:3] == ran[3:]
    assert f"--seed {seed}" in capsys.readouterr().out


def test_a_draw_without_time_still_runs_campaigns(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(campaigns, "find_campaigns", lambda: [f"tests/{n}.py::t" for n in range(20)])
    monkeypatch.setattr(campaigns, "run_batch", lambda batch: ran.append(batch) or True)
    assert campaigns.main(["--minutes", "0", "--jobs", "4"]) == 0
    assert len(ran) == 1
    assert len(ran[0]) == 4
