"""The one exception that users are meant to see."""

from collections.abc import Mapping


class PosexportError(Exception):
    """Something the caller can mend: one sentence with the thing, the value got, the value needed and the next step.

    The command line prints it and exits 2. Anything else that escapes is a defect of posexport.
    """


class RefusedSizesError(PosexportError):
    """A user's module raised an exception at ``sizes`` of the axes of its inputs, by name."""

    def __init__(self, message: str, sizes: Mapping[str, int]) -> None:
        super().__init__(message)
        self.sizes = dict(sizes)
