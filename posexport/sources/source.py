"""What every kind of source loads to: a module with everything that export and proof need to know about it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import nn

from posexport.base.spec import BY_TRIAL, MODEL, Limits, ModelSpec, PartSpec, Promises, SourceKind
from posexport.encodings.encoding import Encoding
from posexport.models.conformer import FixedBatchNorm
from posexport.models.definition import Definition, Part
from posexport.nn.norms import RMSNorm

if TYPE_CHECKING:
    from posexport.graph.precision.blocks.stored_rows import StoredRows
    from posexport.sources.load_options import Refused


class Model(ModelSpec, frozen=True, kw_only=True):
    """A PyTorch module and its facts.

    Attributes:
        module: in eval mode, float32; called as ``module(**{input name: tensor})``, it returns a tuple in the order
            of ``outputs``.
        further: lengths beyond the usual ones to prove it at, where there is memory for them.
        call_bytes: bytes that a call at sizes of all axes has in memory together; None there: not known; None:
            estimates of memory are by lengths alone.
        on_refused: what sizes that the module refuses show of its axes; None there: nothing, or of a module that the
            user named the axes of.
        promises: what holds between its outputs for different inputs.
        parts: the graphs it is exported as, in the order they run; empty: it is one graph.
        labels: names of the labels that are in no file of a checkpoint; empty: its files say them, or nobody does.
        remarks: sentences for the user (unused heads, what was assumed).
        notes: sentences for a user who asks for every step.
        tools: versions of libraries that its module is made with, in addition to those that every conversion uses.
    """

    module: nn.Module
    further: list[int] = msgspec.field(default_factory=list)
    call_bytes: Callable[[Mapping[str, int]], int | None] | None = None
    on_refused: "Callable[[dict[str, int]], Refused | None] | None" = None
    promises: Promises = Promises()
    parts: list[Part] = msgspec.field(default_factory=list)
    labels: list[str] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    tools: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def part_specs(self) -> list[PartSpec]:
        """The file, inputs and outputs of each of ``parts``; empty for one graph."""
        return [part.spec for part in self.parts]


class Source(Model, frozen=True, kw_only=True):
    """A model that is ready to be converted, and where it comes from.

    Attributes:
        name: as the user gave it.
        label: what files that leave this machine call it, the same wherever it lies; None: the last part of its name.
        revision: the commit of a source from the Hugging Face Hub.
        sha256: digest of a checkpoint's files, of a Python file and its weights, or of a built-in model's weights.
        files: tokenizer and configuration files to copy into the bundle, by the name they get there.
        turns: sizes by axis at which a line of a user's module takes another branch than in its trace.
        stored_rows: how a checkpoint has weights of 4 bits; None: it has others.
    """

    name: str
    label: str | None = None
    revision: str | None = None
    kind: SourceKind
    sha256: str
    files: dict[str, Path] = msgspec.field(default_factory=dict)
    turns: Sequence[Mapping[str, int]] = ()
    stored_rows: "StoredRows | None" = None

    @classmethod
    def of(cls, model: Model, **more: Any) -> "Source":
        """The source of ``model``; ``more``: the other fields, and fields of the model that differ."""
        return cls(**({field: getattr(model, field) for field in Model.__struct_fields__} | more))

    @property
    def by_trial(self) -> bool:
        """Whether the module is not defined by posexport, so that running it showed its facts."""
        return self.kind in BY_TRIAL

    @property
    def public_name(self) -> str:
        """A name without folders of the machine that the source lies on; a Hub id keeps its organisation."""
        return self.label or PurePath(self.name).name

    @property
    def graphs(self) -> "dict[str, Source]":
        """The exported graphs by file name: the whole model, or each part as a source."""
        if not self.parts:
            return {MODEL: self}
        return {
            part.spec.file: msgspec.structs.replace(
                self, module=part.module, inputs=part.spec.inputs, outputs=part.spec.outputs, parts=[]
            )
            for part in self.parts
        }


class TracedModule(nn.Module):
    """Base of modules in which attention calls are recognised during tracing.

    Each module has a separate subclass, which its copies share.
    """

    #: of every call of attention in the trace: None where it became an attention node, else why it did not
    attentions: ClassVar[list[str | None]]


def spec_of(model: Definition, task: str) -> ModelSpec:
    """What the definition says of itself, as the record that sources and bundles share."""
    encodings = [encoding.spec for encoding in model.encodings]
    return ModelSpec(
        task=task,
        encoding=encodings[0],
        encodings=encodings if any(spec != encodings[0] for spec in encodings) else [],
        limits=Limits.of(model.limits, model.plan),
        inputs=model.inputs,
        outputs=model.outputs,
    )


def model_of(
    definition: Definition,
    task: str,
    *,
    longest: int | None = None,
    trial: Model | None = None,
    remarks: Sequence[str] = (),
) -> Model:
    """A definition and what it says of itself.

    ``longest``: where its inputs end although its encoding takes longer ones. ``trial``: of a
    definition around another library's module, the facts that running that module showed; posexport does not know its
    encoding.
    """
    facts = spec_of(definition, task).facts
    if longest is not None:
        limits = facts["limits"]
        limit = longest if limits.max_length is None else min(longest, limits.max_length)
        boundaries = sorted({*(length for length in limits.boundaries if length < limit), limit})
        trained = limit if limits.trained_length is None else min(limit, limits.trained_length)
        facts["limits"] = msgspec.structs.replace(
            limits, max_length=limit, trained_length=trained, boundaries=boundaries
        )
    if trial is not None:
        facts |= {"encoding": None, "encodings": [], "further": trial.further, "notes": trial.notes}
        remarks = [*remarks, *trial.remarks]
    return Model(
        **facts,
        module=definition.eval(),
        promises=definition.promises,
        parts=definition.parts,
        remarks=list(remarks),
    )


def draw(module: nn.Module, seed: int) -> None:
    """Fill all parameters: projections keep the scale of their inputs, tables and embeddings have entries of size 1.

    Entries this large make attention pick out positions, so that a lost or shifted position shows far above rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(p) for m in module.modules() if isinstance(m, Encoding) for p in m.parameters(recurse=False)}
    norms = {id(m.weight) for m in module.modules() if isinstance(m, nn.LayerNorm | RMSNorm | FixedBatchNorm)}
    norms |= {id(m.variance) for m in module.modules() if isinstance(m, FixedBatchNorm)}
    convolutions = {id(m.weight) for m in module.modules() if isinstance(m, nn.Conv1d | nn.Conv2d)}
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in tables | embeddings:
                parameter.copy_(noise)
            elif id(parameter) in norms:
                parameter.copy_(1 + 0.1 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            else:
                mapped = parameter[0].numel() if id(parameter) in convolutions else parameter.shape[-1]
                parameter.copy_(noise * mapped**-0.5)


def digest(module: nn.Module) -> str:
    """sha256 of all parameters and buffers, by name; a module may add to its state what is no tensor."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        sha256.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        sha256.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha256.hexdigest()
