"""What one process remembers between commands: everything here may be lost without losing an item.

``context`` is what each operation is given: the state of a broker and of a queue; start there. ``claim_hints``
keeps claims fast, and ``wait_queue`` knows the callers that wait for items.
"""
