"""Small models for the tests of parity, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from posexport.conversion.export.build import build
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.nn.position_ids import FairseqPositionIds
from posexport.proof.choose import ProofOptions, prove_model
from posexport.proof.report.report import Report
from posexport.sources import builtin
from posexport.sources.source import Source
from tests.small import recipe

#: small enough for a test, and no two alike
SIZES = ("max_positions=20", "hidden=20", "feedforward=37", "vocab=61")


def source(name: str = "encoder-absolute", *settings: str, task: str | None = None) -> Source:
    sizes = SIZES if name not in ("encoder-nope", "encoder-sinusoidal", "encoder-shaw-kv") else SIZES[1:]
    layers = () if any(given.startswith("layers=") for given in settings) else ("layers=1",)
    return builtin.builtin_source(name, task=task, settings_given=(*sizes, *layers, *settings))


def exported(made_from: Source, folder: Path, lowering: str = "auto") -> onnx.ModelProto:
    path = folder / "model.onnx"
    build(made_from, path, recipe(lowering=lowering))
    return onnx.load(path)


def of_changed(read: Callable[[], Source], change: Callable[[Any], None] | None, folder: Path) -> tuple[Source, bytes]:
    """A source as ``read`` returns it, and the graph of another one whose module was changed."""
    right, other = read(), read()
    if change is not None:
        with torch.no_grad():
            change(other.module)
    return right, exported(msgspec.structs.replace(right, module=other.module), folder).SerializeToString()


def prove(of: Source, model: Path | bytes, **wishes: Any) -> Report:
    return prove_model(of, model, ProofOptions(**wishes))


class Wrapped(nn.Module):
    """A model's answer, changed by ``change(outputs, mask)``, from inputs changed by ``before(inputs)``."""

    def __init__(
        self,
        inner: nn.Module,
        change: Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]] = lambda y, _: y,
        before: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = lambda *x: x,
    ) -> None:
        super().__init__()
        self.inner, self.change, self.before = inner, change, before

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        answer = self.inner(*self.before(input_ids, attention_mask, token_type_ids))
        return self.change(answer, attention_mask)


def wrapped(right: Source, **changes: Any) -> Source:
    return msgspec.structs.replace(right, module=Wrapped(right.module, **changes).eval())


class Stateful(nn.Module):
    """Adds a little more at every call, as modules do that grow a cache in ``forward``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        answer: tuple[Tensor, ...] = tuple(y + 0.01 * self.calls for y in self.inner(**inputs))
        self.calls += 1
        return answer


class Kept(nn.Module):
    """A table and its rows, read one by one: what is exported is what a test asks for."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(61, 20)
        self.change = change

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        return (self.change(self.token(input_ids)),)


def numbered_by_ids(right: Source) -> Source:
    """RoBERTa's numbering: the ids of padded tokens matter, by definition."""
    config: EncoderConfig = right.module.encoder.config
    encoder = Encoder(config, right.module.encoder.encoding, FairseqPositionIds(config.padding_id))
    module = EncoderModel(encoder, right.module.head).eval()
    limits = dataclass_limit(right, right.limits.max_length - 1)
    return msgspec.structs.replace(right, module=module, limits=limits)


def dataclass_limit(right: Source, limit: int | None) -> Any:
    return msgspec.structs.replace(
        right.limits, max_length=limit, trained_length=limit, boundaries=[limit] if limit else []
    )


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def with_weights(model: onnx.ModelProto, part: str, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    """The initializers whose names end in ``part``, changed."""
    model = copied(model)
    found = [tensor for tensor in model.graph.initializer if tensor.name.endswith(part)]
    assert found, [tensor.name for tensor in model.graph.initializer]
    for tensor in found:
        changed = change(numpy_helper.to_array(tensor).copy())
        tensor.CopyFrom(numpy_helper.from_array(changed.astype(np.float32), tensor.name))
    return model


def with_nodes(model: onnx.ModelProto, change: Callable[[onnx.NodeProto], bool]) -> onnx.ModelProto:
    """Nodes of the graph, of functions and of their loops; ``change`` says whether it changed one, and one must be."""
    model = copied(model)
    bodies: list[Iterable[onnx.NodeProto]] = [model.graph.node, *(function.node for function in model.functions)]
    nodes = [node for body in bodies for node in body]
    nodes += [inner for node in nodes for a in node.attribute for inner in a.g.node]
    assert sum([change(node) for node in nodes]) >= 1
    return model
