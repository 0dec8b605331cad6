"""Decorators of ``Pipeline``: each checks its arguments and adds a stage or a source to the graph.

Plain stages are declared in ``mongoq.pipeline.pipeline``. This package has ``sources``, ``joins``, ``batch_stages`` on
pandas or Arrow frames, and ``spark_frame_stages``.
"""
