"""Calls of the HTTP API, a module for each kind of thing.

Start reading in ``queues``. Each module makes a router from ``Services``: the client of the broker, and the limits.
"""
