"""Dice of our own: jitter neither takes from the numbers that a program draws from ``random``, nor follows its seed."""

from __future__ import annotations

import os
import random

__all__ = ["dice"]

dice = random.Random()
os.register_at_fork(after_in_child=dice.seed)  # so that the children of a process do not all wait as long
