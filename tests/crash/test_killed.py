"""Producers and workers, and the servers under them, killed with SIGKILL at random moments.

What holds afterwards is proven from what the producers were told and what the database holds. ``MONGOQ_CRASH_SEED``
brings a schedule back.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.campaign import Campaign
from tests.crash.claims import broken
from tests.crash.worker import Engine

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))


def proven(campaign: Campaign, memory: Path, notes: Path) -> dict[str, int]:
    """Fight a campaign, check every claim, and return its figures."""
    print(f"MONGOQ_CRASH_SEED={campaign.seed}")
    evidence = campaign.fought(memory, notes)
    figures = evidence.figures()
    print(f"{campaign}: {figures}")
    violations = broken(evidence)
    assert not violations, f"{len(violations)} violations of {campaign}, such as\n" + "\n".join(violations[:20])
    return figures


@pytest.mark.parametrize("engine", ["threads", "asyncio"])
@pytest.mark.parametrize(
    ("nodes", "kills", "crashes"), [pytest.param(1, 17, 2, id="one node"), pytest.param(3, 13, 2, id="three nodes")]
)
def test_killed_processes_and_servers_lose_nothing_and_double_nothing(
    nodes: int, kills: int, crashes: int, engine: Engine, memory: Path, tmp_path: Path
) -> None:
    figures = proven(Campaign(nodes, engine, kills, crashes, SEED), memory, tmp_path)
    assert figures["interrupted runs"] > 0


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["threads", "asyncio"])
@pytest.mark.parametrize(
    ("nodes", "kills", "crashes"), [pytest.param(1, 250, 10, id="one node"), pytest.param(3, 250, 10, id="three nodes")]
)
def test_a_thousand_kills_lose_nothing_and_double_nothing(
    nodes: int, kills: int, crashes: int, engine: Engine, memory: Path, tmp_path: Path
) -> None:
    figures = proven(Campaign(nodes, engine, kills, crashes, SEED), memory, tmp_path)
    assert figures["overtaken runs"] > 0
