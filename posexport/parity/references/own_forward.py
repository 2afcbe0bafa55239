"""The user's own forward as a second judge of a decoder whose KV cache posexport made.

The truth of a `PlainDecoder` is posexport's decoder in float64. What that computes otherwise than its author's forward
the graph computes otherwise as well, and no comparison of the two shows it: a window, a clip or a branch by the length.

Shape letters: B batch, T tokens, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.in_parts import ROUNDING
from posexport.modules.own_decoder import IDS
from posexport.modules.plain.decoder import PlainDecoder
from posexport.modules.plain.fit import line_in_the_way
from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds, token_mask
from posexport.parity.grid.point import GridPoint
from posexport.parity.proof import Case
from posexport.parity.references.definition import Computed, DefinitionReference
from posexport.parity.sample.writer import SampleWriter
from posexport.runtime.cache import LOGITS
from posexport.sources.source import Source
from posexport.targets.precisions import PrecisionName


class JudgedByForward(DefinitionReference):
    """The definition, whose logits in float64 must be those that the user's forward has for every row by itself.

    A row is read without its padding, in one call: a forward numbers its tokens from the first that it is given, and
    what padding on the left does to a row is none of its author's promises. Points in several calls or with positions
    that are given have the sequences of other points. Raises PosexportError where they differ.
    """

    def case(self, point: GridPoint) -> Case:
        """As of the definition, looked at once more."""
        case = super().case(point)
        if not point.calls and not point.position_ids_given:
            for truth in case.truths:
                if isinstance(truth, Computed) and truth.output == LOGITS:
                    self._judge(point, case.feeds, truth.y64)
        return case

    def _judge(self, point: GridPoint, feeds: Feeds, logits_BTV: Array) -> None:
        keep_BT = token_mask(point, self.source.inputs)
        assert keep_BT is not None  # every decoder with a cache takes a mask
        # rows without padding in one call
        groups = [list(range(point.batch))] if keep_BT.all() else [[row] for row in range(point.batch)]
        for rows in groups:
            real_T = keep_BT[rows[0]]
            ids_BT = torch.from_numpy(feeds[IDS][rows][:, real_T])
            tokens, own_BTV = self.truth.asked(partial(_own, ids_BT=ids_BT))
            other = _first_other(torch.from_numpy(logits_BTV[rows][:, real_T][:, tokens]), own_BTV)
            if other is not None:
                self._refuse(ids_BT, tokens[other])

    def _refuse(self, ids_BT: Tensor, token: int) -> None:
        line = self.truth.asked(lambda module: line_in_the_way(module, ids_BT))
        raise PosexportError(
            f"{self.source.name}: of {ids_BT.shape[1]} tokens its own forward gives other logits, from the "
            f"{token + 1}th on, than with a KV cache: {line}; convert it for the task features"
        )


def reference_of(
    source: Source, precision: PrecisionName, sample: SampleWriter | None = None, device: str = "cpu"
) -> DefinitionReference:
    """The reference of a definition in a proof of a graph that computes in ``precision``; PyTorch is on ``device``."""
    judged = isinstance(source.module, PlainDecoder) and source.module.judged_by_forward
    return (JudgedByForward if judged else DefinitionReference)(source, precision, sample, device)


def _own(decoder: nn.Module, ids_BT: Tensor) -> tuple[Sequence[int], Tensor]:
    """Tokens, and the logits that the user's forward has for them, [B, tokens, V].

    Of a forward that returns those of the last token a few: each is a call of its own.
    """
    assert isinstance(decoder, PlainDecoder)
    length = ids_BT.shape[1]
    if not decoder.plan_of_calls.of_last:
        return range(length), decoder.plain(ids_BT, torch.ones_like(ids_BT))
    few = sorted({0, length // 2, max(0, length - 2), length - 1})
    calls = ((ids_BT[:, : token + 1], token) for token in few)
    return few, torch.cat([decoder.plain(ids, torch.ones_like(ids), token) for ids, token in calls], 1)


def _first_other(logits_BTV: Tensor, own_BTV: Tensor) -> int | None:
    """The first token whose logits differ by more than rounding; None where there is none."""
    off_T = (logits_BTV - own_BTV).abs().amax((0, 2))
    same_T = off_T <= ROUNDING[torch.float64] * own_BTV.abs().amax()
    return None if bool(same_T.all()) else int(same_T.int().argmin())
