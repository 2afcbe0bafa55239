"""The model's forward as a second judge of a decoder with states: posexport wrote the decode steps.

The reference is the decoder in float64. An error in its decode steps is in the graph too, so that comparing the two
does not show it; comparing the decoder with the model's forward does.

Shape letters: B batch, T tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from posexport.base.spec import LOGITS
from posexport.errors import PosexportError
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds, token_mask
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Case
from posexport.proof.references.computed import Computed
from posexport.proof.references.definition import DefinitionReference
from posexport.sources.source import Source

#: the difference of two computations in float64 that is rounding, relative to the largest logit
_ROUNDING = 1e-9


class JudgedByForward(DefinitionReference):
    """The definition as reference, after its float64 logits are compared with the model's forward.

    Forward reads each row alone, without its padding, in one call. Points in several calls, or with `position_ids`,
    have the sequences of other points; those with a drawn cache have none. They are not compared.

    Raises PosexportError where the logits differ.
    """

    def case(self, point: GridPoint) -> Case:
        """The case of the definition; its logits are compared with the model's forward."""
        case = super().case(point)
        if not (point.calls or point.cached or point.position_ids_given):
            for truth in case.truths:
                if isinstance(truth, Computed) and truth.output == LOGITS:
                    self._judge(point, case.feeds, truth.y64)
        return case

    def _judge(self, point: GridPoint, feeds: Feeds, logits_BTV: Array) -> None:
        keep_BT = token_mask(point, self.source.inputs)
        assert keep_BT is not None  # every decoder with a cache takes a mask
        # rows without padding in one call
        groups = [list(range(point.batch))] if keep_BT.all() else [[index] for index in range(point.batch)]
        for rows in groups:
            real_T = keep_BT[rows[0]]
            ids_BT = torch.from_numpy(feeds["input_ids"][rows][:, real_T])

            def forward(module: Any, ids_BT: Tensor = ids_BT) -> Tensor:
                logits: Tensor = module.uncached_logits(ids_BT, torch.ones_like(ids_BT))
                return logits

            other = _first_other(torch.from_numpy(logits_BTV[rows][:, real_T]), self.truth.asked(forward))
            if other is not None:
                raise PosexportError(
                    f"{self.source.name}: of {ids_BT.shape[1]} tokens its own forward gives other logits, from the "
                    f"{other + 1}th on, than with its states; convert it for the task features"
                )


def kind_of(source: Source) -> type[DefinitionReference]:
    """The class of reference in a proof of a graph of ``source``."""
    judged = getattr(source.module, "judged_by_forward", False)
    return JudgedByForward if judged else DefinitionReference


def _first_other(logits_BTV: Tensor, expected_BTV: Tensor) -> int | None:
    """The first token with logits that differ by more than rounding; None where there is none."""
    off_T = (logits_BTV - expected_BTV).abs().amax((0, 2))
    same_T = off_T <= _ROUNDING * expected_BTV.abs().amax()
    return None if bool(same_T.all()) else int(same_T.int().argmin())
