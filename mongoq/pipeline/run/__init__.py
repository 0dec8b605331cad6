"""A pipeline at work in this process: stages become consumers of a worker, sources are read, and all is counted.

``run`` is what ``start`` returns: start there. ``consumers``, ``join_consumers`` and ``sources`` turn the graph into
what a worker runs; ``outcome_resolver`` maps what a handler returned to an outcome; ``progress`` and ``counts`` say
how far it is.
"""
