"""A graph drawn for people: ``text`` for the terminal, ``mermaid`` for documents."""
