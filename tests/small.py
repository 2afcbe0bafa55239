"""Small sources that several tests build."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.base.options.recipe import Recipe
from posexport.base.targets.target import Target
from posexport.conversion.export.context import of_source
from posexport.conversion.export.negotiate import DEFAULT_OPSET
from posexport.conversion.export.trace import trace
from posexport.encodings import encoding as registry
from posexport.encodings.build import describe
from posexport.errors import PosexportError
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import PassResult
from posexport.modules.live_module import module_source
from posexport.sources import builtin
from posexport.sources.source import Source

#: Odd sizes, so that no two axes can be confused, and a table short enough to step beyond.
SIZES = ("layers=1", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "max_positions=23")


class OfFeatures(nn.Module):
    """A function of the input ``features``."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: Tensor) -> Tensor:
        return self.function(features)


def source(encoding: str, *settings: str, task: str | None = None) -> Source:
    """A fresh built-in encoder of one layer."""
    given = dict(pair.split("=", 1) for pair in (*SIZES, *settings))
    if encoding in ("sinusoidal", "nope", "shaw-k", "shaw-kv"):
        given.pop("max_positions")
    return builtin.builtin_source(
        f"encoder-{encoding}", task=task, settings_given=tuple(f"{key}={value}" for key, value in given.items())
    )


def recipe(**options: Any) -> Recipe:
    """Resolved options as a conversion would have them."""
    return Recipe(**{"task": "features", "opset": DEFAULT_OPSET, **options})


def after_recognition(
    module: nn.Module, inputs: dict[str, Tensor], opset: int
) -> tuple[ir.Model, dict[str, PassResult]]:
    """The traced graph of a module behind the passes that recognise, and what they report."""
    source = module_source(module.eval(), inputs)
    graph = trace(source, opset)
    return graph, pipeline.run(graph, of_source(source, Target()), ["recognise"])


def proven(source: Any, folder: Path, **options: Any) -> posexport.Conversion:
    """`posexport.convert` of a module or another source; its proof passed."""
    done = posexport.convert(source.eval() if isinstance(source, nn.Module) else source, folder, **options)
    assert done.good, done.to_text()
    return done


def in_short(rows: Iterable[Any], keep: Callable[..., bool]) -> list[Any]:
    """Rows of a parametrisation: those that ``keep`` takes run always, the others with --all."""
    found = []
    for row in rows:
        values = row if isinstance(row, tuple) else (row,)
        found.append(pytest.param(*values, marks=() if keep(*values) else pytest.mark.all))
    return found


#: What most tests of graphs share, so that each model is traced once: two layers, for what the second has of the first,
#: and heads of 8 channels, which every operator of attention takes.
SHARED = ("layers=2", "hidden=40", "heads=5", "feedforward=24", "vocab=61")


def shared(name: str, *settings: str) -> tuple[str, ...]:
    """Settings of a model that tests share: a table has 200 positions, and the heads of a decoder are a group."""
    given = (*SHARED, *settings)
    if name.startswith("decoder-") and "head" not in name and not any("kv_heads" in pair for pair in settings):
        given += ("kv_heads=1",)
    try:
        builtin.builtin_source(name, task=None, settings_given=(*given, "max_positions=200"))
    except PosexportError:
        return given
    return (*given, "max_positions=200")


def by_attention(prefix: str) -> list[str]:
    """The first model of each kind of attention, of those whose names begin so; and both kinds of rotation.

    A lowering and a proof see nothing else of an encoding that acts on scores and values.
    """
    found: dict[tuple[str, ...], str] = {}
    for name, (_, encoding) in builtin.models().items():
        if name.startswith(prefix) and not name.removeprefix(prefix).startswith("decoder-"):
            what = describe(
                registry.ENCODINGS[encoding], {"hidden": 60, "heads": 5, "head_size": 12, "max_positions": 40}
            )
            terms = [hook for hook in what.hooks if hook in ("scores", "values")]
            found.setdefault((*terms, *what.operators), name)
    return sorted({*found.values(), f"{prefix}rope", f"{prefix}rope-dynamic"})


class TwoLayers(nn.Module):
    """Two residual layers on embeddings of 61 ids; a subclass computes the attention of ``heads`` heads."""

    heads = 5

    def __init__(self, channels: int, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(61, channels)
        self.qkv = nn.ModuleList(nn.Linear(channels, 3 * channels) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(channels, channels) for _ in range(2))
        for parameter in (*self.qkv.parameters(), *self.out.parameters()):
            parameter.data *= gain

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embeddings(input_ids, attention_mask)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv(x).chunk(3, -1))
            x = x + out(self.attend(q, k, v, attention_mask).transpose(1, 2).flatten(2))
        return x

    def embeddings(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, T, C] of tokens."""
        return self.token(input_ids)  # type: ignore[no-any-return]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """[B, H, T, D] of queries, keys and values, with a mask of ones and zeros [B, T]."""
        raise NotImplementedError
