"""Everything that is wrong with a graph, a sentence each: which stage or queue, and what to do about it.

``graph`` collects the sentences of the other modules: start there. Each of these looks at one kind of part.
"""
