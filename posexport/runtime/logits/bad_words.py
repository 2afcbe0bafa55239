"""Bad words: forbids the last token of a sequence after its other tokens. A single end token is ignored."""

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.sequence_bias import SequenceBias
from posexport.runtime.logits.token_rows import TokenRows


class BadWords:
    """``words``: lists of ids. Words that end outside the vocabulary, which may be pruned, are ignored."""

    def __init__(self, words: list[list[int]]) -> None:
        self._words = words
        self._bias: SequenceBias | None = None

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        if self._bias is None:
            known = [word for word in self._words if 0 <= word[-1] < scores_BV.shape[1]]
            self._bias = SequenceBias(known, [-float("inf")] * len(known))
        return self._bias(scores_BV, rows)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    words = [list(word) for word in options.bad_words_ids or ()]
    words = [word for word in words if len(word) > 1 or word[0] not in setting.eos]
    return BadWords(words) if words else None
