"""The graph of a pipeline as plain data: stages, sources and the queues between them. Nothing runs here.

``graph`` holds the stages: start there; ``stage`` and ``source`` describe one each. ``routes`` follows items through
the graph, ``comparison`` lists differences from another graph, ``names`` and ``imports`` name handlers, ``annotations``
reads their types.
"""
