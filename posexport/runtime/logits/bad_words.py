"""Bad words: the last token of each is forbidden where the others come before; an end token alone is no bad word."""

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.sequence_bias import SequenceBias
from posexport.runtime.logits.token_rows import TokenRows


class BadWords:
    """``words``: lists of ids; a last one beyond the vocabulary, which may have been cut, never occurs."""

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
