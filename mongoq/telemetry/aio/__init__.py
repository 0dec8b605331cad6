"""The observed operations: ``operations`` for asyncio, from which those for threads are generated."""
