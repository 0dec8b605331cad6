"""A private MongoDB for demos and tests: started in a fraction of a second, gone with its owner.

Needs a ``mongod``: one on PATH, or the wheel that the extra ``embedded`` brings.
"""

from mongoq.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
