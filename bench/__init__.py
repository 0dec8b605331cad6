"""Benchmarks: scripts with a JSON result, each with the limit of the bare driver measured beside it in the same run.

``python -m bench`` lists them.
"""
