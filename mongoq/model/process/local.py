"""Objects that belong to the process that made them."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex

__all__ = ["Local"]


class Local:
    """An object with a client, threads or tasks of this process, which other processes do not have.

    Pickling and copying it raise ``TypeError`` with advice on the alternative.
    """

    __slots__ = ()
    _elsewhere: ClassVar[str]
    """Advice for the other process, or for the copy."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled; ``copy`` and ``deepcopy`` call this too."""
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: {self._elsewhere}")
