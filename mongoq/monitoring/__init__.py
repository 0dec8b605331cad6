"""Monitoring: what other programs read to see whether this process works, and how much.

``health_server`` answers probes by HTTP. Nothing in the core imports this package.
"""

from mongoq.monitoring.health_server import HealthServer

__all__ = ["HealthServer"]
