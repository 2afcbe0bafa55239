"""The one exception that users are meant to see."""


class PosexportError(Exception):
    """Something the caller can mend: one sentence with the thing, the value got, the value needed and the next step.

    The command line prints it and exits 2. Anything else that escapes is a defect of posexport.
    """
