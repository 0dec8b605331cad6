"""Random numbers of mongoq's own: jitter takes none from a program's ``random``, and does not follow its seed."""

from __future__ import annotations

import os
import random

__all__ = ["dice"]

dice = random.Random()
# So that the children of a process do not all wait for the same time.
os.register_at_fork(after_in_child=dice.seed)
