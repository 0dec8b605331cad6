"""Checks of a graph: each fault is one sentence that names the stage or queue and the remedy.

``graph`` collects the sentences of the other modules: start there. ``stages`` checks one stage or source on its own,
``types`` the annotations of its handler against the models of the stages that it sends to.
"""
