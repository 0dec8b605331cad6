"""Producers and consumers of 500 sequences, and the servers under them, killed with SIGKILL at random moments.

What holds afterwards is judged by the ledger of the processes. ``MONGOQ_CRASH_SEED`` brings the order of kills back.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.ordered.campaign import LOG, Campaign
from tests.crash.ordered.judge import broken, figures
from tests.crash.ordered.line import SEQUENCES

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))


def prove(campaign: Campaign, memory: Path, directory: Path) -> dict[str, int]:
    """Fight a campaign, and check every claim."""
    story, left = campaign.run(memory, directory)
    counted = figures(story)
    print(f"{campaign}: {counted}")
    violations = broken(story)
    assert not violations, f"{len(violations)} violations, such as\n" + "\n".join(violations[:20])
    assert left == 0, f"{left} documents of sequences were left, and no items"
    unexpected = (directory / LOG).read_text()
    assert "Traceback" not in unexpected, unexpected
    return counted


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_kills_let_no_item_of_a_sequence_overtake_overlap_or_be_lost(memory: Path, tmp_path: Path) -> None:
    counted = prove(Campaign(nodes=3, seconds=120, crash_every=12, seed=SEED), memory, tmp_path)
    assert counted["sequences"] == len(SEQUENCES)
    assert min(counted[name] for name in ("done", "popped", "failed", "repeated", "dead", "expired")) > 0


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_kills_let_no_item_follow_a_letter_that_holds_its_sequence(memory: Path, tmp_path: Path) -> None:
    counted = prove(Campaign(nodes=3, seconds=90, crash_every=12, seed=SEED, holds=True), memory, tmp_path)
    assert counted["sequences"] > 0.9 * len(SEQUENCES)
    assert counted["dead"] == 0
    assert min(counted[name] for name in ("done", "popped", "failed", "replayed", "removed")) > 0


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_kills_break_no_sequence_whose_items_workers_hand_on(memory: Path, tmp_path: Path) -> None:
    campaign = Campaign(nodes=3, seconds=60, crash_every=12, seed=SEED, sequences=4)
    counted = prove(campaign, memory, tmp_path)
    assert counted["handed over"] > counted["done"] / 10
    assert min(counted[name] for name in ("done", "failed", "repeated", "dead", "expired")) > 0


@pytest.mark.prove
def test_killed_processes_and_a_killed_server_break_no_sequence(memory: Path, tmp_path: Path) -> None:
    counted = prove(Campaign(nodes=1, seconds=10, crash_every=6, seed=SEED), memory, tmp_path)
    assert min(counted["done"], counted["expired"]) > 0


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_killed_processes_and_a_killed_server_end_no_hold(memory: Path, tmp_path: Path) -> None:
    counted = prove(Campaign(nodes=1, seconds=15, crash_every=6, seed=SEED, holds=True), memory, tmp_path)
    assert min(counted[name] for name in ("done", "replayed", "removed")) > 0
