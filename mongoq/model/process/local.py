"""Objects that belong to the process that made them."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex

__all__ = ["Local"]


class Local:
    """An object with a client, threads or tasks behind it, which no other process has.

    Pickling and copying it raise ``TypeError``, which says what to do instead.
    """

    __slots__ = ()
    _elsewhere: ClassVar[str]
    """What to do in the other process, or with the copy."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled; ``copy`` and ``deepcopy`` ask for the same."""
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: {self._elsewhere}")
