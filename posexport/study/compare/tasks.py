"""Three classification tasks about the order of tokens in a random row.

A row begins with a start token, as BERT's does. A random permutation follows of one marker, three pairs of tokens (A
and its B) and letters of an alphabet of eight, every letter equally often. Labels of a token:

``copy`` (8 classes)    of every token: the letter two positions earlier, if it is one
``order`` (2 classes)   of the tokens of a pair: whether it is before its partner
``marker`` (4 classes)  up to 16 positions from the marker: 9 to 16 before it, 1 to 8 before, 1 to 8 after, 9 to 16
                        after (only if the row is long enough on both sides for all four)

An encoder without positions cannot do better than chance: it has the same output for all tokens of a kind, all rows of
a length hold the same tokens, and every class is equally frequent. An encoder that knows distances but not their sign
can use the distance to the start token only.

The tasks exist at any length: a longer row has more letters, and its marker and pairs are anywhere, so that it has
distances and positions that were never trained. ``copy`` needs one exact distance, ``order`` the sign of any distance,
``marker`` the rough size and the sign of a distance.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LETTERS, PAIRS, BACK, NEAR = 8, 3, 2, 8
PADDING, START, MARKER, FIRST_LETTER = range(4)
FIRST_PAIR = FIRST_LETTER + LETTERS
#: size of the vocabulary
VOCAB = FIRST_PAIR + 2 * PAIRS
#: a row holds every letter once at least
SHORTEST = 2 + 2 * PAIRS + LETTERS
#: the label of a token without one
NOT_ASKED = -1


@dataclass(frozen=True)
class Task:
    """One question. ``first``: the channel of its first answer among a model's outputs; ``weight``: of its loss."""

    name: str
    question: str
    answers: int
    first: int
    weight: float

    @property
    def channels(self) -> slice:
        """The channels of its classes in the model's output."""
        return slice(self.first, self.first + self.answers)

    @property
    def chance(self) -> float:
        return 1 / self.answers


#: the exact distance is learned last: its loss counts four times
TASKS = (
    Task("copy", f"which letter stands {BACK} places before this token", LETTERS, 0, 4.0),
    Task("order", "does this token stand before its partner", 2, LETTERS, 1.0),
    Task("marker", f"is it 1 to {NEAR} or up to {2 * NEAR} places before or behind the marker", 4, LETTERS + 2, 1.0),
)
#: channels of a model's output
ANSWERS = sum(task.answers for task in TASKS)


def draw(rng: np.random.Generator, rows: int, length: int) -> tuple[Ints, Ints]:
    """Tokens [rows, length] and labels [tasks, rows, length], `NOT_ASKED` for tokens without a label."""
    if length < SHORTEST:
        raise ValueError(f"rows of {length} tokens: there must be at least {SHORTEST}")
    letters = FIRST_LETTER + np.arange(length - 2 - 2 * PAIRS) % LETTERS
    bag = np.concatenate([[MARKER], FIRST_PAIR + np.arange(2 * PAIRS), letters])
    shuffled = rng.permuted(np.broadcast_to(bag, (rows, length - 1)), axis=1)
    tokens = np.concatenate([np.full((rows, 1), START), shuffled], axis=1)
    return tokens, np.stack([_copy(tokens), _order(tokens), _marker(tokens)])


def _copy(tokens: Ints) -> Ints:
    answers = np.full_like(tokens, NOT_ASKED)
    before = tokens[:, :-BACK] - FIRST_LETTER
    answers[:, BACK:] = np.where((before >= 0) & (before < LETTERS), before, NOT_ASKED)
    return answers


def _order(tokens: Ints) -> Ints:
    answers = np.full_like(tokens, NOT_ASKED)
    row, place = np.nonzero(tokens >= FIRST_PAIR)
    member = tokens[row, place] - FIRST_PAIR
    places = np.empty((len(tokens), 2 * PAIRS), dtype=np.int64)
    places[row, member] = place
    answers[row, place] = place < places[row, member ^ 1]
    return answers


def _marker(tokens: Ints) -> Ints:
    marker = (tokens == MARKER).argmax(axis=1)[:, None]
    behind = np.arange(tokens.shape[1])[None, :] - marker
    answer = np.where(behind < 0, 1, 2) + np.where(behind < -NEAR, -1, 0) + np.where(behind > NEAR, 1, 0)
    # in fours, one place for every answer: those that the row is too short for would leave the others too frequent
    distance = abs(behind)
    farthest = np.where(distance <= NEAR, distance + NEAR, distance)
    room = np.minimum(marker - 1, tokens.shape[1] - 1 - marker)
    labelled = (distance > 0) & (distance <= 2 * NEAR) & (farthest <= room)
    return np.where(labelled, answer, NOT_ASKED)


def right(answers: Ints, predictions: Ints) -> tuple[int, int]:
    """The number of correct ``predictions``, and the number of labels in ``answers``."""
    labelled = answers != NOT_ASKED
    return int((predictions == answers)[labelled].sum()), int(labelled.sum())
