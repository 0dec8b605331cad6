"""Schedules as they are stored: when they tick, what a tick pushes, and what becomes of missed ticks.

Start with ``definition.Definition``; ``timetable`` computes dates, and nothing here does I/O.
"""
