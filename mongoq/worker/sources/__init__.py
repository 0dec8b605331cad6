"""Sources in a worker: ``plan`` checks a source, ``reader`` calls its generator and buffers the records.

``reader_aio`` does the same for async generators; ``mongoq.worker.aio.source_runner`` pushes the records.
"""
