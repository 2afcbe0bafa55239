"""Chronos-Bolt (Ansari et al., arXiv:2403.07815; amazon/chronos-bolt-*) by the class of chronos-forecasting.

A T5 encoder reads patches of a series, and one step of a T5 decoder gives all quantiles of the next steps.

Shape letters: B batch, T steps, Q quantiles, P predicted steps.
"""

import sys
from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.base.spec import BATCH, SEQUENCE, Axis, InputSpec, Limits
from posexport.base.system.extras import require
from posexport.checkpoints.config import Config
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.weights import Weights
from posexport.errors import PosexportError
from posexport.sources.source import Model
from posexport.through import library
from posexport.through.agreement import use_posexport_attention
from posexport.through.module import TransformersModule, checkpoint_source

#: the inputs, by the names of the class
CONTEXT, MASK = "context", "mask"
OUTPUT = "quantile_preds"
#: the tensor that the library ties others to
_SHARED = "shared.weight"
_TASK = "time-series-forecasting"
#: tolerance, relative to the largest element, between the library's class in float32 and the module
_ROUNDING = 1e-4


class ChronosBolt(TransformersModule):
    """Quantiles of the next steps of a series with gaps, [B, Q, P], of ``context`` and ``mask``, [B, T].

    A step that the mask says 0 of, or that is NaN, is missing, as NaN is to the library's class. The class pads a
    series whose length is no multiple of a patch, by a branch that a graph does not have; here every series is padded,
    by no steps where it is whole.

    Args:
        model: ``ChronosBoltModelForForecasting``, which does not cut series from now on.
    """

    def __init__(self, model: Any) -> None:
        axes: list[Axis] = [BATCH, SEQUENCE]
        inputs = [
            InputSpec(name=CONTEXT, dtype="float32", axes=axes, role="values"),
            InputSpec(name=MASK, dtype="int64", axes=axes, role="mask"),
        ]
        super().__init__(model, (OUTPUT,), inputs, with_positions=False)
        settings = model.chronos_config
        self.longest, self._patch = int(settings.context_length), int(settings.input_patch_size)
        # the class cuts longer series, by a branch that no graph has
        settings.context_length = sys.maxsize

    def limits(self, limits: Limits) -> Limits:
        """``limits`` with all that the model was trained for, which a search may not reach."""
        return msgspec.structs.replace(limits, max_length=self.longest, trained_length=self.longest)

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        context_BT, length = tensors[CONTEXT], tensors[CONTEXT].shape[1]
        if not torch.compiler.is_compiling() and length > self.longest:
            raise ValueError(f"a series of {length} steps, and context_length is {self.longest}")
        x_BT = torch.where(tensors[MASK] > 0, context_BT, torch.nan)
        missing_B = x_BT.new_full((x_BT.shape[0], -length % self._patch), torch.nan)
        return {OUTPUT: self.model(context=torch.cat([missing_B, x_BT], 1)).quantile_preds}


def make(checkpoint: Checkpoint) -> Model:
    """The model of chronos-forecasting with the checkpoint's weights.

    Raises:
        PosexportError: chronos-forecasting is missing, or the checkpoint is not whole or is for another task.
    """
    config = checkpoint.config
    if checkpoint.task not in (None, _TASK):
        raise PosexportError(f"{config.label}: Chronos-Bolt is for {_TASK}, not {checkpoint.task}; leave --task out")
    if checkpoint.adapter is not None:
        raise PosexportError(f"{config.label}: adapters of Chronos-Bolt are not merged; give the merged checkpoint")
    require(f"{config.label} is of Chronos-Bolt, which", "chronos", "transformers")
    transformers = library.library(f"{config.label} is of Chronos-Bolt, which")
    with library.quiet(transformers):
        chronos = _imported(config)
        cls = chronos.chronos_bolt.ChronosBoltModelForForecasting
        model = _load(transformers, cls, checkpoint)
        answers = _answers(model)
        module = ChronosBolt(model).eval()
        remarks = use_posexport_attention(config.label, module)
        _check_answers(config, module, answers)
        source = checkpoint_source(checkpoint, module, _TASK, remarks)
    versions = {"transformers": transformers.__version__, "chronos-forecasting": chronos.__version__}
    return msgspec.structs.replace(
        source, remarks=[*library.remarks(transformers.__version__), *source.remarks], tools=versions
    )


MAKER = Maker("transformers", make)


def _imported(config: Config) -> Any:
    """The package ``chronos`` with the module of the class."""
    try:
        import chronos
        import chronos.chronos_bolt
    except ImportError as err:
        raise PosexportError(
            f"{config.label} is of Chronos-Bolt, and chronos-forecasting cannot be imported ({err}): "
            "pip install 'posexport[chronos]'"
        ) from err
    return chronos


def _load(transformers: Any, cls: Any, checkpoint: Checkpoint) -> Any:
    """The class in float32 with every tensor of the checkpoint, and no parameter without one."""
    config, weights, path = checkpoint.config, checkpoint.weights, str(checkpoint.files.path / checkpoint.below)
    try:
        settings = transformers.T5Config.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            empty = cls(settings)
        _check_tensors(config, empty, weights)
        model = cls.from_pretrained(
            path, config=settings, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    except PosexportError:
        raise
    except Exception as err:
        text = " ".join(str(err).split())
        raise PosexportError(
            f"{config.label}: chronos-forecasting cannot load it: {type(err).__name__}: {text[:300]}; compare its "
            "chronos_config with the one on the Hub"
        ) from err
    return model.eval()


def _check_tensors(config: Config, model: Any, weights: Weights) -> None:
    """PosexportError for a tensor that is missing, left over, or of another shape than ``model``'s.

    The class itself fills its patch embeddings with random numbers where the file lacks them.
    """
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = set(model._tied_weights_keys) - {_SHARED}  # noqa: SLF001 (transformers' own list, which has no public name)
    for name, shape in shapes.items():
        if name not in weights.shapes and name not in tied:
            raise PosexportError(f"{weights.label} has no tensor {name}; download the checkpoint again")
        if weights.shapes.get(name, shape) != shape:
            raise PosexportError(
                f"{weights.label}: {name} has the shape {weights.shapes[name]}, {config.label} says {shape}; download "
                "the checkpoint again"
            )
    if unused := [name for name in weights.shapes if name not in shapes]:
        raise PosexportError(
            f"{weights.label} has a tensor {unused[0]} that {type(model).__name__} does not read; it is of another "
            "model: give the files of one"
        )
    for name in sorted(tied & set(weights.shapes)):
        if not torch.equal(weights.read(name), weights.read(_SHARED)):
            raise PosexportError(f"{weights.label}: {name} is not {_SHARED}, which the class reads in its place")


def _answers(model: Any) -> list[tuple[Tensor, Tensor]]:
    """Series with gaps, [B, T], NaN where steps are missing, and what the library's class gives, [B, Q, P].

    One is shorter than a patch, one has whole patches, and the longest is no multiple of one where it may be.
    """
    patch, longest = model.chronos_config.input_patch_size, model.chronos_config.context_length
    drawn = torch.Generator().manual_seed(0)
    answers = []
    for length in sorted({min(length, longest) for length in (1, patch - 1, 2 * patch, 3 * patch + 1) if length}):
        series_BT = 5 + 3 * torch.randn(3, length, generator=drawn)
        series_BT[1, : length // 2] = torch.nan
        series_BT[2, torch.rand(length, generator=drawn) < 0.4] = torch.nan
        with torch.no_grad():
            answers.append((series_BT, model(context=series_BT).quantile_preds))
    return answers


def _check_answers(config: Config, module: ChronosBolt, answers: list[tuple[Tensor, Tensor]]) -> None:
    """PosexportError where ``module`` gives something else than the library's class did."""
    for series_BT, answer_BQP in answers:
        mask_BT = (~series_BT.isnan()).long()
        with torch.no_grad():
            got_BQP = module(context=series_BT.nan_to_num(7.0), mask=mask_BT)[OUTPUT]
        if not float((got_BQP - answer_BQP).abs().max()) <= _ROUNDING * float(answer_BQP.abs().max()):
            raise PosexportError(
                f"{config.label}: the installed chronos-forecasting gives other quantiles for {series_BT.shape[1]} "
                "steps than posexport's module of it; posexport was tested with chronos-forecasting 2.3.2"
            )
