"""Checks of a graph: each fault is one sentence that names the stage or queue and the remedy.

``graph`` checks the whole, and each stage and source on its own: start there. ``types`` checks the annotations of a
handler against the models of the stages that it sends to.
"""
