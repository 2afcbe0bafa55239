"""Conversions by every option that decides which graph a model gets, as a covering array.

A case is a model with a target, a precision, a kind of KV cache and an opset. All combinations would be more than ten
thousand, so the array has every pair of what can meet in one graph: of two options, of an option and an encoding, of an
option and a definition or family. Every model is in it, most built-in ones for every target.
"""

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import combinations, product
from pathlib import Path

from safetensors import safe_open

from posexport.sources import builtin

GOLDEN = Path(__file__).parents[1] / "golden"
TARGETS = ("portable", "cpu", "cuda")
PRECISIONS = ("fp32", "fp16", "int8", "int4")
#: the default of each target, and the highest that all of them take
OPSETS = (None, 24)
#: definitions whose models are converted for every target; the attention of encoder-decoders and of audio is theirs
EVERY_TARGET = ("encoder", "decoder", "vision")
#: input and output channels of the smallest linear projection that becomes smaller in integers
SMALLEST = 16


@dataclass(frozen=True)
class Model:
    """What is converted.

    Attributes:
        name: a built-in model or a folder of tests/golden.
        form: its definition or its family.
        encoding: its encoding; of a checkpoint none, its family decides.
        decodes: whether it has a KV cache, which may be static.
        quantizes: whether it has a linear projection that is large enough.
    """

    name: str
    form: str
    encoding: str | None
    decodes: bool = False
    quantizes: bool = True

    @property
    def argument(self) -> str:
        """The source for `posexport.convert`."""
        return str(GOLDEN / self.name) if (GOLDEN / self.name).is_dir() else self.name

    @property
    def settings(self) -> dict[str, object]:
        """Two layers, where the model can have them: what a second layer shares with the first takes part."""
        known = builtin.models().get(self.name)
        return {"layers": 2} if known is not None and "layers" in known[0].config.settings() else {}


@dataclass(frozen=True)
class Case:
    """One conversion."""

    model: Model
    target: str
    precision: str
    cache: str
    opset: int | None

    def __str__(self) -> str:
        opset = "" if self.opset is None else f"-opset{self.opset}"
        return f"{self.model.name}-{self.target}-{self.precision}-{self.cache}{opset}"

    @property
    def pairs(self) -> set[tuple[object, ...]]:
        """What this case shows to work together."""
        _, *options = astuple(self)
        numbered = list(enumerate(options))
        pairs: set[tuple[object, ...]] = {(*a, *b) for a, b in combinations(numbered, 2)}
        pairs |= {(of, *option) for of in (self.model.form, self.model.encoding) if of for option in numbered}
        return pairs | {self.model_pair}

    @property
    def model_pair(self) -> tuple[object, ...]:
        """The model, with the target if it puts an encoding into attention in a way of its own."""
        return (self.model.name, self.target if self.model.form in EVERY_TARGET else None)


def models() -> Iterator[Model]:
    """All built-in models and all golden checkpoints."""
    for name, (kind, encoding) in builtin.models().items():
        yield Model(name, kind.name, encoding, decodes="decoder" in kind.name)
    for config in sorted(GOLDEN.glob("*/config.json")):
        folder = config.parent
        family = json.loads(config.read_text())["model_type"]
        with safe_open(folder / "model.safetensors", "pt") as stored:
            shapes = [stored.get_slice(key).get_shape() for key in stored.keys()]  # noqa: SIM118 (no mapping)
        quantizes = any(len(shape) == 2 and min(shape) >= SMALLEST for shape in shapes)
        yield Model(folder.name, family, None, quantizes=quantizes)


def possible(model: Model) -> Iterator[Case]:
    """All cases of a model that posexport takes."""
    caches = ("dynamic", "static") if model.decodes else ("dynamic",)
    for target, precision, cache, opset in product(TARGETS, PRECISIONS, caches, OPSETS):
        if precision in ("int8", "int4") and not model.quantizes:
            continue  # refused: nothing would be quantized
        if (target, precision) == ("cuda", "int8"):
            continue  # refused: no kernel
        yield Case(model, target, precision, cache, opset)


def covering_array() -> list[Case]:
    """Cases that cover every pair: greedily, for each model in turn those that cover most of what is open."""
    every = [list(possible(model)) for model in models()]
    open_pairs = set[tuple[object, ...]]().union(*(case.pairs for cases in every for case in cases))
    chosen = []
    for number, cases in enumerate(every):
        # where several cases cover as much, each model begins with another one
        start = number * 5 % len(cases)
        cases[:] = cases[start:] + cases[:start]
        while left := [case for case in cases if case.model_pair in open_pairs]:
            chosen.append(max(left, key=lambda case: len(case.pairs & open_pairs)))
            open_pairs -= chosen[-1].pairs
    # pairs that no model has brought along
    for case in (case for cases in every for case in cases):
        if case.pairs & open_pairs:
            chosen.append(case)
            open_pairs -= case.pairs
    return chosen
