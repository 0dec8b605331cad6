"""State of one process: its clock, its identity, its counters.

``clock`` is the server's time as this process knows it: start there. ``local`` refuses to pickle objects that belong to
the process; ``jitter`` draws random numbers that are independent of a program's own seed.
"""
