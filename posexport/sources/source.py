"""What every kind of source loads to: a module with everything that export and proof need to know about it."""

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Literal

from torch import nn

from posexport.definition.definition import Part
from posexport.spec import MODEL, EncodingSpec, InputSpec, LengthContract, OutputSpec, Promises, ProofPlan


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that is ready to be converted.

    Attributes:
        name: as the user gave it.
        module: in eval mode, float32; called as ``module(**{input name: tensor})``, it returns a tuple in the order
            of ``outputs``.
        label: what files that leave this machine call it, the same wherever it lies; None: the last part of its name.
        revision: the commit of a source from the Hugging Face Hub.
        sha256: of what determines the weights (a checkpoint's files, a Python file, a built-in's settings).
        encodings: of every layer in turn, where they differ; ``encoding`` is the first one's.
        limits: the lengths it is right for.
        plan: the sizes to trace and to prove it at.
        promises: what holds between its outputs for different inputs.
        parts: the graphs it is exported as, in the order they run; none: it is one.
        files: tokenizer and configuration files to copy into the bundle, by the name they get there.
        remarks: sentences for the user (unused heads, what was assumed).
        notes: sentences for who asks for every step.
    """

    name: str
    label: str | None = None
    revision: str | None = None
    kind: Literal["builtin", "python", "huggingface"]
    module: nn.Module
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    limits: LengthContract
    encoding: EncodingSpec | None
    encodings: list[EncodingSpec] = field(default_factory=list)
    task: str
    sha256: str
    plan: ProofPlan = field(default_factory=ProofPlan)
    promises: Promises = field(default_factory=Promises)
    parts: list[Part] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def public_name(self) -> str:
        """A name without folders of the machine that the source lies on; a Hub id keeps its organisation."""
        return self.label or PurePath(self.name).name

    @property
    def graphs(self) -> "dict[str, Source]":
        """What is exported, by the name of its file: the whole, or every part as a source of its own."""
        if not self.parts:
            return {MODEL: self}
        return {
            part.spec.file: replace(
                self, module=part.module, inputs=part.spec.inputs, outputs=part.spec.outputs, parts=[]
            )
            for part in self.parts
        }
