"""The draws of modules after the first, which modules.py has: each is a file of cases and a list of packages.

They were made one after the other: a draw is a file named as the next of the ordinal numbers. Its table of
docs/results/packages.md is the block ``packages-ORDINAL``.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
_ORDINALS = (
    *("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
    *("thirteenth", "fourteenth", "fifteenth"),
)
#: those that there are, in their order
DRAWS = [ordinal for ordinal in _ORDINALS if (FOLDER / f"{ordinal}.py").exists()]
