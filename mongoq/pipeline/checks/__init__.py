"""Checks of a graph: each fault is one sentence that names the stage or queue and the remedy.

``graph`` collects the sentences of the other modules: start there. Each other module checks one kind of part.
"""
