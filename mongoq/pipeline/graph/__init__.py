"""The graph of a pipeline as plain data: stages, sources and the queues between them. Nothing runs here.

``graph`` holds the stages and sources, and follows items through them: start there. ``handlers`` names handlers and
reads the types of their annotations.
"""
