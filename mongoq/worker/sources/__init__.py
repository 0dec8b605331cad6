"""Sources as a worker runs them: ``plan`` checks a source, ``reader`` calls its generator and holds what it yields.

``reader_aio`` does the same for async generators; ``mongoq.worker.aio.source_runner`` pushes what was read.
"""
