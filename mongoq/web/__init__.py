"""Dashboard and HTTP API: look into queues and repair them, in a browser or by JSON (extra ``web``).

Start reading in ``app``, which puts the parts together. ``access`` says who may read and who may change something,
``guard`` enforces it before each request. ``items``, ``letters`` and ``queues`` have a function for each call of a
program, ``api`` is their table, and ``pages`` show people the same reads and changes. ``client`` calls the broker.
"""

from __future__ import annotations

try:
    import fastapi  # noqa: F401
except ImportError as error:
    hint = "the HTTP API needs FastAPI: install mongoq-driver[web] (pip install '.[web]')"
    raise ImportError(hint, name=error.name) from error

from mongoq.web.access import Access, Level, Users
from mongoq.web.app import create_app

__all__ = ["Access", "Level", "Users", "create_app"]
