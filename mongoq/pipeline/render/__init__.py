"""Text and diagrams of a graph: ``text`` for the terminal, ``mermaid`` for documents."""
