"""Other queues on MongoDB, each installed into a folder of its own, and emptied beside mongoq on the same server."""

from bench.peers.measured import measure

__all__ = ["measure"]
