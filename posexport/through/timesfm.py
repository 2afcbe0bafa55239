"""TimesFM (arXiv:2310.10688): the next steps of series, with quantiles.

transformers reads a list of series and pads each in front to ``context_length``. Here they are rows with a mask, padded
anywhere, and by less than a patch in front: patches that are all padding are read by nothing.

Shape letters: B batch, T steps, H predicted steps, Q quantiles.
"""

from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.base.spec import BATCH, SEQUENCE, Axis, InputSpec, Limits
from posexport.base.tasks.task import Task
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.modules.in_parts import differ
from posexport.sources.source import Model
from posexport.through.agreement import use_posexport_attention
from posexport.through.module import TransformersModule, checkpoint_source

#: the inputs; the mask is 1 at steps and 0 at padding
SERIES, MASK, FREQUENCY = "past_values", "past_observed_mask", "freq"
MEAN, FULL = "mean_predictions", "full_predictions"


class TimesFm(TransformersModule):
    """Maps series [B, T], a mask and frequencies [B] to the mean [B, H] and the mean and quantiles [B, H, 1 + Q].

    Args:
        model: ``TimesFmModelForPrediction``.
    """

    def __init__(self, model: Any) -> None:
        axes: list[Axis] = [BATCH, SEQUENCE]
        inputs = [
            InputSpec(name=SERIES, dtype="float32", axes=axes, role="values"),
            InputSpec(name=MASK, dtype="int64", axes=axes, role="mask"),
            InputSpec(name=FREQUENCY, dtype="int64", axes=[BATCH], role="types", size=model.config.freq_size),
        ]
        super().__init__(model, (MEAN, FULL), inputs, with_positions=False)
        self.longest, self._patch = model.config.context_length, model.config.patch_length

    def limits(self, limits: Limits) -> Limits:
        """``limits`` with all that the model was trained for, which a search may not reach."""
        return msgspec.structs.replace(limits, max_length=self.longest, trained_length=self.longest)

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        x_BT, mask_BT = tensors[SERIES], tensors[MASK]
        length = x_BT.shape[1]
        if not torch.compiler.is_compiling() and length > self.longest:
            raise ValueError(f"a series of {length} steps, and context_length is {self.longest}")
        # the last step of every row comes last, wherever its padding is
        steps_T = torch.arange(length, device=x_BT.device)
        from_BT = steps_T - (length - 1 - (mask_BT * steps_T).amax(1, keepdim=True))
        x_BT, mask_BT = (each_BT.gather(1, from_BT.clamp(min=0)) for each_BT in (x_BT, mask_BT))
        mask_BT = mask_BT * (from_BT >= 0)
        front = x_BT.new_zeros((x_BT.shape[0], -length % self._patch))
        is_step_BT = torch.cat((front, mask_BT.to(x_BT.dtype)), 1)
        decoded = self.model.decoder(
            past_values=torch.cat((front, x_BT), 1) * is_step_BT,
            past_values_padding=1 - is_step_BT,
            freq=tensors[FREQUENCY][:, None],
        )
        last_B1C, stats = decoded.last_hidden_state[:, -1:], (decoded.loc, decoded.scale)
        full_BHQ = self.model._postprocess_output(last_B1C, stats)[:, 0]  # noqa: SLF001 (it has no public name)
        return {MEAN: full_BHQ[..., 0], FULL: full_BHQ}


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """The ``model`` of a checkpoint as one graph.

    Raises:
        PosexportError: it has an embedding of positions, or the module's predictions differ from transformers'.
    """
    label = checkpoint.config.label
    if model.config.use_positional_embedding:
        raise PosexportError(
            f"{label} says use_positional_embedding = true, as TimesFM 1.0, whose positions transformers shifts by a "
            "loop over the batch; only later versions are converted"
        )
    series = _series(model.config)
    freq = [number % model.config.freq_size for number in range(len(series))]
    with torch.no_grad():
        expected = model(past_values=series, freq=freq, return_dict=True)
    module = TimesFm(model).eval()
    remarks = use_posexport_attention(label, module)
    rows_BT = torch.nn.utils.rnn.pad_sequence([x_T.flip(0) for x_T in series], batch_first=True).flip(1)
    lengths = torch.tensor([len(x_T) for x_T in series])
    mask_BT = (torch.arange(rows_BT.shape[1]) >= rows_BT.shape[1] - lengths[:, None]).long()
    with torch.no_grad():
        actual = module(**{SERIES: rows_BT, MASK: mask_BT, FREQUENCY: torch.tensor(freq)})
    for name in (MEAN, FULL):
        if differ(actual[name], expected[name], torch.ones(expected[name].shape[:-1]), torch.float32):
            raise PosexportError(
                f"{label}: transformers gives other {name} for series of different lengths than posexport's module of "
                "it; it is not converted"
            )
    return checkpoint_source(checkpoint, module, task.name, remarks)


def _series(settings: Any) -> list[Tensor]:
    """Series of all steps, of whole patches, of a part of one, and of a few steps."""
    random, patch = torch.Generator().manual_seed(0), settings.patch_length
    lengths = [settings.context_length, 2 * patch, patch + patch // 2 + 1, max(patch - 1, 1)]
    return [5 + 3 * torch.randn(min(n, settings.context_length), generator=random) for n in lengths]
