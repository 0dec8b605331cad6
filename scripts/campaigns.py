"""Runs campaigns drawn by chance, for as many minutes as CI has for them; `make prove` runs all of them.

    python scripts/campaigns.py [--minutes N] [--seed N] [--jobs N]

A campaign is a test with the mark `prove`. The seed is printed, and brings the same order back; how many
of them run depends on the machine. Campaigns of tests/crash run alone: their replica sets lose and find
primaries all the time. No campaign begins in the last minute. Histories of the model test are fewer.

Exit status: 0 when all that ran have passed, 1 when one has failed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
CAMPAIGNS = "prove and not long"
HISTORIES = "500"
"""Histories of the model test, all parts together; `make prove` tells 5,000."""
LAST_START_SECONDS = 60.0


def find_campaigns() -> list[str]:
    """Return the ids of all campaigns, as pytest finds them."""
    files = [
        str(path.relative_to(ROOT)) for path in sorted(TESTS.rglob("test_*.py")) if "mark.prove" in path.read_text()
    ]
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", CAMPAIGNS, *files],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [line for line in listing.stdout.splitlines() if "::" in line]


def cut_batches(campaigns: Sequence[str], jobs: int) -> Iterator[list[str]]:
    """Yield the campaigns in their order, as many at a time as there are processes; those of tests/crash alone."""
    batch: list[str] = []
    for campaign in campaigns:
        if campaign.startswith("tests/crash/"):
            yield [campaign]
            continue
        batch.append(campaign)
        if len(batch) == jobs:
            yield batch
            batch = []
    if batch:
        yield batch


def run_batch(campaigns: Sequence[str]) -> bool:
    """Run some campaigns side by side; return whether all have passed."""
    command = [sys.executable, "-m", "pytest", "-m", CAMPAIGNS, "-n", str(len(campaigns)), "--dist", "loadgroup"]
    environment = {"MONGOQ_EXAMPLES": HISTORIES, **os.environ}
    return subprocess.run([*command, *campaigns], cwd=ROOT, env=environment, check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run campaigns until the minutes are over, or until one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, metavar="N", help="time for all of them (default: 5)")
    parser.add_argument("--seed", type=int, metavar="N", help="what they are drawn by (default: chance)")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="campaigns at a time (default: 4)")
    options = parser.parse_args(arguments)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    end = time.monotonic() + options.minutes * 60
    campaigns = find_campaigns()
    random.Random(seed).shuffle(campaigns)
    print(f"{len(campaigns)} campaigns, drawn with --seed {seed}", flush=True)
    done = 0
    for batch in cut_batches(campaigns, options.jobs):
        if done and time.monotonic() > end - LAST_START_SECONDS:
            break
        if not run_batch(batch):
            print(f"a campaign has failed; again: python scripts/campaigns.py --seed {seed}")
            return 1
        done += len(batch)
    print(f"{done} of {len(campaigns)} campaigns have passed, drawn with --seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
