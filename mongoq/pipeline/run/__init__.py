"""Runs of a pipeline in this process: stages become consumers of a worker, sources are read, and results are counted.

``run`` is what ``start`` returns: start there. ``consumers`` turns the graph into consumers and source plans of a
worker, and maps results of handlers to outcomes.
"""
