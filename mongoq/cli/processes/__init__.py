"""Commands that keep running: workers with their supervisor, pipelines, and the exporter of metrics.

Start reading in ``worker``; ``supervisor`` keeps its processes alive, each of which is a ``worker_process``.
"""
