"""What every kind of source loads to: a module with everything that export and proof need to know about it."""

from pathlib import Path, PurePath
from typing import Any

import msgspec
from torch import nn

from posexport.definition.definition import Part
from posexport.spec import BY_TRIAL, MODEL, ModelSpec, Promises, SourceKind


class Model(ModelSpec, frozen=True, kw_only=True):
    """A PyTorch module and its facts.

    Attributes:
        module: in eval mode, float32; called as ``module(**{input name: tensor})``, it returns a tuple in the order
            of ``outputs``.
        further: lengths beyond the usual ones to prove it at, where there is memory for them.
        promises: what holds between its outputs for different inputs.
        parts: the graphs it is exported as, in the order they run; empty: it is one graph.
        remarks: sentences for the user (unused heads, what was assumed).
        notes: sentences for a user who asks for every step.
        tools: versions of libraries that its module is made with, in addition to those that every conversion uses.
    """

    module: nn.Module
    further: list[int] = msgspec.field(default_factory=list)
    promises: Promises = Promises()
    parts: list[Part] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    tools: dict[str, str] = msgspec.field(default_factory=dict)


class Source(Model, frozen=True, kw_only=True):
    """A model that is ready to be converted, and where it comes from.

    Attributes:
        name: as the user gave it.
        label: what files that leave this machine call it, the same wherever it lies; None: the last part of its name.
        revision: the commit of a source from the Hugging Face Hub.
        sha256: digest of a checkpoint's files, of a Python file and its weights, or of a built-in model's weights.
        files: tokenizer and configuration files to copy into the bundle, by the name they get there.
    """

    name: str
    label: str | None = None
    revision: str | None = None
    kind: SourceKind
    sha256: str
    files: dict[str, Path] = msgspec.field(default_factory=dict)

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
