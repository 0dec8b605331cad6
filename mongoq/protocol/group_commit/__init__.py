"""Single operations of concurrent callers that share commands: each caller is told what became of its own part.

``operations`` says for each operation how its callers' parts become one command; ``state.batcher`` decides when it is
sent.
"""
