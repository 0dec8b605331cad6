"""``python -m examples.structured_logs``: JSON lines with the fields of items, queues and workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_line_is_json_with_fields_and_without_messages() -> None:
    command = [sys.executable, "-m", "examples.structured_logs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (failure,) = [line for line in lines if "has failed in run" in line["event"]]
    assert (failure["level"], failure["logger"]) == ("error", "mongoq.worker")
    assert (failure["mongoq_queue"], failure["mongoq_attempt"]) == ("mails", 1)
    assert failure["mongoq_item"] in failure["event"]
    assert failure["mongoq_worker"] == lines[0]["mongoq_worker"]
    assert failure["mongoq_duration"] >= 0
    assert "Traceback" in failure["exception"]
    assert "Grace has no address" not in done.stdout
