"""Monitoring: what other programs read to see whether this process works, and how much.

``health_server`` answers probes by HTTP. ``prometheus`` makes metrics, and is imported by its own name, since it needs
the extra of the same name. ``durations`` counts calls of handlers for it. Nothing in the core imports this package.
"""

from mongoq.monitoring.health_server import HealthServer

__all__ = ["HealthServer"]
