"""Help pages of commands: examples below the options."""

from __future__ import annotations


def examples(*commands: str) -> str:
    """Return the end of a help page, with one example in each line."""
    # The mark keeps the line breaks of what follows.
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)
