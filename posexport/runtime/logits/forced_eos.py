"""Forces the last token of a row that reaches its maximum length."""

from dataclasses import dataclass

from posexport.runtime.generation_config import GenerationConfig, token_ids
from posexport.runtime.logits.processor import Processor, Scores, Setting, only
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class ForcedEos:
    tokens: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return only(scores_BV, self.tokens, rows.lengths_B == rows.most_B - 1)


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    forced = options.forced_eos_token_id
    return None if forced is None else ForcedEos(token_ids(forced))
