"""The ``nn.Module`` that is exported: a transformers model with named inputs and the outputs of its task.

Shape letters: B batch, T tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.sizes import samples
from posexport.base.spec import BATCH, EMBEDS, SAMPLES, SEQUENCE, Axis, InputSpec, Limits, OutputSpec
from posexport.base.system.user_code import is_external
from posexport.base.tasks.registry import TASKS
from posexport.base.tasks.task import ANY, Task
from posexport.checkpoints.folder_kind import folder_kinds
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.modules.eval_mode import in_eval_mode
from posexport.modules.live_module import source_of_module
from posexport.modules.returned import named_outputs
from posexport.modules.user_module import UserModule, returning
from posexport.proof.reduced.reduction import leave_out_layers
from posexport.sources.example import axis_sizes, example
from posexport.sources.lazy_parameters import materialize, with_values
from posexport.sources.memory_mapped import LARGE, copy_with_same_weights, size_of
from posexport.sources.source import Source
from posexport.sources.torch_fixes.symbolic_int import with_symbolic_ints
from posexport.through.inputs import IDS, MASK, PIXELS, POSITIONS, convolutions_of, inputs_of
from posexport.through.library import unchecked
from posexport.through.phrases import in_graphs
from posexport.through.states import masks_as_given

#: roles of inputs that trial calls detect
_SEEN = ("mask", "flags", "lengths")
#: number of tokens of an audio example
_FRAMES = 16
#: number of audio tokens in the proof: enough for tiled attention
LONG = 600


class TransformersModule(nn.Module):
    """Calls ``model`` with named tensors and returns the outputs of its task as a dict.

    Args:
        model: a model of transformers.
        outputs: names of the outputs to return; the model may leave some out. Empty: all of them.
        inputs: the inputs, which `posexport.modules.live_module` reads from here.
        with_positions: pass ``position_ids``, by default counted from the attention mask.
    """

    def __init__(self, model: Any, outputs: Iterable[str], inputs: list[InputSpec], *, with_positions: bool) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs
        self._outputs, self._with_positions = tuple(outputs), with_positions

    @property
    def example_and_axes(self) -> tuple[dict[str, Tensor], dict[str, list[Axis]]] | tuple[()]:
        """Example inputs and their axes; empty if batch and tokens are the only dynamic axes."""
        if all(axis in (BATCH, SEQUENCE) for spec in self.inputs for axis in spec.axes if isinstance(axis, str)):
            return ()
        return example(self.inputs, self.sizes({})), {spec.name: spec.axes for spec in self.inputs}

    def sizes(self, chosen: Mapping[str, int], tokens: int = _FRAMES) -> dict[str, int]:
        """A size of every dynamic axis: the sizes in ``chosen``, and enough audio samples for ``tokens`` tokens."""
        convolutions = convolutions_of(self.model.config)
        audio = {SAMPLES: samples(tokens, convolutions)} if convolutions else {}
        return axis_sizes(self.inputs, {**audio, **chosen})

    def limits(self, limits: Limits) -> Limits:
        """``limits`` with further sizes for the proof, from the model's configuration; subclasses override it."""
        return limits

    def output_axes(self, spec: OutputSpec) -> OutputSpec:
        """``spec`` with axes that trial calls cannot detect; subclasses override it."""
        return spec

    def with_inputs(self, inputs: list[InputSpec]) -> "TransformersModule":
        """The same model with other inputs."""
        return type(self)(self.model, self._outputs, inputs, with_positions=self._with_positions).eval()

    def add_positions(self, tensors: dict[str, Tensor]) -> None:
        """Add ``position_ids`` to ``tensors``, counted from the attention mask, if the model needs and lacks them."""
        if self._with_positions and POSITIONS not in tensors:
            tensors[POSITIONS] = (tensors[MASK].cumsum(1) - 1).clamp(min=0)

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        self.add_positions(tensors)
        if IDS in tensors and tensors[IDS].is_floating_point():  # `posexport.models.embeddings_input`
            tensors[EMBEDS] = tensors.pop(IDS)
        with (
            masks_as_given(self.model),
            in_graphs(self.model),
            unchecked() if torch.compiler.is_compiling() else nullcontext(),
        ):
            outputs = self.model(**tensors, return_dict=True)
        if self._outputs:
            named = {name: outputs[name] for name in self._outputs if outputs.get(name) is not None}
            if not named:
                raise PosexportError(
                    f"{type(self.model).__name__} returns {', '.join(outputs)}, and none of "
                    f"{', '.join(self._outputs)}; choose another task with --task"
                )
            return named
        # a loss is one number for the whole batch, and some models return an input again
        return {name: x for name, x in named_outputs(outputs).items() if x.dim() and name not in tensors}


def checkpoint_source(
    checkpoint: Checkpoint, module: TransformersModule, task: str, remarks: Sequence[str] = ()
) -> Source:
    """The model of a checkpoint as a source for ``task``, with the limits and axes that trial calls show."""
    label = checkpoint.config.text("model_type")
    source = _by_few_layers(str(checkpoint.files.path), module, label)
    _check_axes(str(checkpoint.config.label), task, source)
    declared = {spec.name: spec for spec in module.inputs}
    # an example does not show bounds and roles of inputs
    inputs = [
        msgspec.structs.replace(spec if spec.role in _SEEN else declared[spec.name], axes=spec.axes)
        for spec in source.inputs
    ]
    found = [remark for remark in source.remarks if not remark.endswith("as the example has; give the largest there")]
    user, outputs = source.module, [module.output_axes(spec) for spec in source.outputs]
    assert isinstance(user, UserModule)
    return msgspec.structs.replace(
        source,
        module=returning(user, outputs),
        task=task,
        inputs=inputs,
        outputs=outputs,
        limits=_limits_of(source, module),
        remarks=[*remarks, *found],
    )


def _by_few_layers(argument: str, module: TransformersModule, label: str) -> Source:
    """The source of ``module``, from calls of a few of its layers where it is large: they show the same."""
    with with_few_layers(module) as few:
        source = source_of_module(argument, few, *few.example_and_axes, label=label, fingerprint=b"")
    assert isinstance(source.module, UserModule)
    source.module.module = in_eval_mode(argument, module)
    return source


@contextmanager
def with_few_layers(module: TransformersModule) -> Iterator[TransformersModule]:
    """A copy with a few layers where ``module`` is large, else ``module``; inside the block its parameters have values.

    With a layer of each kind, or where its code cannot be called so, with all kinds that follow each other. ``module``
    where its code asks for all layers, as CLIPSeg's for some of them by number.
    """
    for each in (1, None) if size_of(module.parameters()) > LARGE else ():
        few = copy_with_same_weights(module)
        if isinstance(leave_out_layers(few, each=each), str):
            break
        with with_values(few.parameters()):
            if _can_be_called(few):
                yield few
                return
    materialize(module.parameters())
    yield module


def _check_axes(label: str, task: str, source: Source) -> None:
    """Raise PosexportError if an output has another number of axes than its task requires."""
    wanted = TASKS[task].outputs if task in TASKS else {}
    for spec in source.outputs:
        axes = wanted.get(spec.name, ANY)
        if axes != ANY and len(axes) != len(spec.axes):
            raise PosexportError(
                f"{label}: the model returns {spec.name} as [{', '.join(map(str, spec.axes))}], and {task} is about "
                f"[{', '.join(axes)}]; choose the task that it was trained for with --task"
            )


def _limits_of(source: Source, module: TransformersModule) -> Limits:
    """The limits of ``source`` with the trained length; for audio with a proof size that reaches tiled attention.

    The trained length is ``max_position_embeddings``, at most the longest input that the model accepts: some position
    tables have rows for padding.
    """
    limits, settings = source.limits, module.model.config
    stated = getattr(settings.get_text_config(), "max_position_embeddings", None)
    if any(spec.role == "tokens" for spec in source.inputs) and isinstance(stated, int):
        limits = msgspec.structs.replace(limits, trained_length=min(stated, limits.max_length or stated))
        return module.limits(limits)
    sizes = module.sizes({}, tokens=LONG)
    if SAMPLES not in sizes:
        return module.limits(limits)
    return msgspec.structs.replace(limits, proof_sizes=[*limits.proof_sizes, {SAMPLES: sizes[SAMPLES]}])


def module_for_task(label: str, model: Any, task: Task, *, with_positions: bool) -> TransformersModule:
    """``model`` with the inputs and outputs of ``task``; ``label`` names the checkpoint in messages.

    Raises:
        PosexportError: the model needs inputs that posexport does not know.
    """
    inputs = inputs_of(label, model, with_positions=with_positions)
    module = TransformersModule(model, task.outputs, inputs, with_positions=with_positions)
    if not any(BATCH in str(axis) and axis != BATCH for spec in inputs for axis in spec.axes):
        return module
    # images and texts: any numbers of both, or the same number of texts for every image, or pairs
    pairs = inputs_of(label, model, pairs=True)
    ways = (module, TextsOfImages(model, task.outputs, inputs, with_positions=False))
    fits = (way for way in ways if _can_be_called(way))
    return next(fits, SymbolicSizes(model, task.outputs, pairs, with_positions=False))


class SymbolicSizes(TransformersModule):
    """A model with int() and len() of sizes in its code; both stay symbolic while it is traced."""

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        # the exporter's second attempt (Dynamo) analyses the Python code, which must be unchanged
        if not torch.compiler.is_compiling() or torch.compiler.is_dynamo_compiling():
            return super().forward(**tensors)
        libraries = ("transformers.", *(f"{kind.library}." for kind in folder_kinds().values() if kind.library))
        with with_symbolic_ints(self.model, lambda name: name.startswith(libraries)):
            return super().forward(**tensors)


class TextsOfImages(SymbolicSizes):
    """A model that reads the same number of texts with every image: [images * texts, T] in the order of the images.

    Trial calls and proofs also choose a number of texts that is not a multiple of the number of images: the texts are
    then repeated from the first one on. `Session.run` rejects it.
    """

    axes = (f"image_{BATCH}", BATCH, "texts")

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        images, texts = tensors[PIXELS].shape[0], tensors[IDS].shape[0]
        share = (texts + images - 1) // images
        dealt = {name: x.repeat(images, 1)[: share * images] for name, x in tensors.items() if name != PIXELS}
        return super().forward(**dealt, pixel_values=tensors[PIXELS])

    def limits(self, limits: Limits) -> Limits:
        """``limits`` without left padding: the model treats a text that begins with padding as absent."""
        images, texts, _ = self.axes
        return msgspec.structs.replace(
            limits,
            paddings=["right", "ragged-right"],
            multiple_of={texts: images},
            # a share of 1 would be traced as a constant
            trace_sizes={**limits.trace_sizes, images: 3, texts: 7},
        )

    def output_axes(self, spec: OutputSpec) -> OutputSpec:
        """``spec`` with the texts of an image as the last axis of logits: trial calls with few texts do not show it."""
        if spec.name != "logits":
            return spec
        return msgspec.structs.replace(spec, axes=[*spec.axes[:-1], self.axes[2]])


def _can_be_called(module: TransformersModule) -> bool:
    """Whether the model accepts its example: more texts than images."""
    images = f"image_{BATCH}"
    tensors = example(module.inputs, module.sizes({images: 3, BATCH: 7} if images in _axes_of(module) else {}))
    try:
        with torch.no_grad():
            module.eval()(**tensors)
    except Exception as err:
        if is_external(err):
            raise
        return False
    return True


def _axes_of(module: TransformersModule) -> set[Axis]:
    return {axis for spec in module.inputs for axis in spec.axes}
