"""Other queues on MongoDB, each installed into a folder of its own, and emptied beside mongoq on the same server."""

from bench.peers.comparison import measure

__all__ = ["measure"]
