"""Group commit: concurrent callers of single operations share commands; each gets the result of its own part.

``operations`` defines for each operation how the parts of its callers become one command; ``state.batcher`` decides
when it is sent.
"""
