"""What is quoted of the text that Spark makes of an error."""

from __future__ import annotations

import pytest

from mongoq.spark.errors import in_short

CALLED = """An error occurred while calling o69.collectToPython.
: org.apache.spark.SparkException: Job 3 cancelled because it was told to
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
"""
RAISED = """Job aborted:
Traceback (most recent call last):
  File "worker.py", line 1, in main
ModuleNotFoundError: No module named 'prices'

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CALLED, "org.apache.spark.SparkException: Job 3 cancelled because it was told to"),
        (RAISED, "ModuleNotFoundError: No module named 'prices'"),
        ("\n  plain\nand more", "plain"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_what_went_wrong_is_quoted(text: str, line: str) -> None:
    assert in_short(RuntimeError(text)) == line
