"""Pages for people: the same reads and changes as the HTTP API, as HTML.

Start reading in ``routes``, which has a function for each page; ``changes`` has the forms, ``render`` fills the
templates. The pages work without the script; with it they renew themselves (``feed``).
"""
