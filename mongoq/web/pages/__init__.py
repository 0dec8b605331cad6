"""Pages for people: the same reads and changes as the HTTP API, as HTML.

Start reading in ``routes``, the table of the pages; ``views`` has a function for each page, ``changes`` the forms that
ask before a change, ``render`` fills the templates. The pages work without the script; with it they renew themselves.
"""
