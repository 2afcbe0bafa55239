"""Forces the first new token after a prompt of one token: the target language of mBART."""

from dataclasses import dataclass

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, only
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class ForcedBos:
    token: int

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return only(scores_BV, [self.token], rows.lengths_B == 1)


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return None if options.forced_bos_token_id is None else ForcedBos(options.forced_bos_token_id)
