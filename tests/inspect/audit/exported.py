"""Files that public tools write, with the fault of a public case and without it.

Each function is a maker of `tests.inspect.audit.corpus`: it writes into a folder, and returns the file.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

#: sizes that cannot be confused
BATCH, TOKENS, HIDDEN, HEADS = 3, 11, 20, 5
_AXES: Mapping[str, Sequence[str]] = {
    "input_ids": ("batch", "tokens"),
    "attention_mask": ("batch", "tokens"),
    "x": ("batch", "tokens"),
    "y": ("batch", "tokens"),
    "z": ("batch", "tokens"),
    "past_state": ("batch",),
    "present_state": ("batch",),
    "past_key": ("batch", "past"),
    "present_key": ("batch", "all"),
    "sentence_embedding": ("batch",),
}


def exported(
    module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], folder: Path, *, dynamo: bool = False
) -> Path:
    """The file of ``torch.onnx.export``, whose axes are dynamic as `_AXES` says."""
    path = folder / "model.onnx"
    axes = {name: dict(enumerate(_AXES[name])) for name in (*inputs, *outputs) if name in _AXES}
    shapes = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) for name in inputs)
    how: dict[str, Any] = {"dynamic_axes": axes} if not dynamo else {"dynamic_shapes": shapes, "verbose": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # both exporters warn of themselves, and the tracer of what these cases show
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=18,
            dynamo=dynamo,
            external_data=False,
            **how,
        )
    return path


def _states() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, TOKENS, HIDDEN)}


def _texts() -> dict[str, Tensor]:
    ids = torch.randint(0, 31, (BATCH, TOKENS))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _in_half(path: Path, **options: Any) -> Path:
    """The file through ONNX Runtime's float16 converter, inputs too."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(path), **options), path)
    return path


class _RmsNorm(nn.Module):
    def __init__(self, *, weight: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN)) if weight else None

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normed if self.weight is None else normed * (1.0 + self.weight)


def _norm(folder: Path, *, weight: bool, fault: bool, dynamo: bool) -> Path:
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    path = exported(_RmsNorm(weight=weight), _states(), ["y"], folder, dynamo=dynamo)
    if fault:
        return _in_half(path)
    return _in_half(path, op_block_list=[*DEFAULT_OP_BLOCK_LIST, "Pow", "ReduceMean", "Add", "Sqrt"])


def norm_with_weight(folder: Path, *, fault: bool) -> Path:
    return _norm(folder, weight=True, fault=fault, dynamo=False)


def norm_without_weight(folder: Path, *, fault: bool) -> Path:
    return _norm(folder, weight=False, fault=fault, dynamo=True)


class _Attention(nn.Module):
    """Self-attention with a bias between places."""

    def __init__(self) -> None:
        super().__init__()
        self.joint, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.joint(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / 2.0
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def attention_in_half(folder: Path, *, fault: bool) -> Path:
    path = exported(_Attention(), _states(), ["y"], folder)
    return _in_half(path) if fault else path


def attention_in_int8(folder: Path, *, fault: bool) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = exported(_Attention(), _states(), ["y"], folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(path, path, weight_type=QuantType.QInt8, reduce_range=not fault)
    return path


class _Decay(nn.Module):
    """A weight for each place, by a Range in float."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(-0.5 * torch.arange(x.shape[1], dtype=torch.float32))[None, :, None]


def range_in_half(folder: Path, *, fault: bool) -> Path:
    path = exported(_Decay(), _states(), ["y"], folder)
    return _in_half(path, disable_shape_infer=True) if fault else path


class _Longrope(nn.Module):
    """The cosines of two sets of frequencies; by ``if``, of which a trace keeps one side, or by ``where``."""

    original = 24

    def __init__(self, *, traced: bool) -> None:
        super().__init__()
        self.traced = traced
        self.table = nn.Embedding(31, HIDDEN)
        base = 1.0 / 10000.0 ** (torch.arange(0, 20, 2) / 20.0)
        self.register_buffer("short", base / torch.linspace(1.0, 1.5, 10))
        self.register_buffer("long", base / torch.linspace(2.0, 4.0, 10))

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1])
        if self.traced:
            frequencies = self.long if input_ids.shape[1] > self.original else self.short
        else:
            frequencies = torch.where((positions[-1] >= self.original)[..., None], self.long, self.short)
        angles = positions[:, None].float() * frequencies
        angles = torch.cat([angles, angles], -1)
        x = self.table(input_ids)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def longrope(folder: Path, *, fault: bool) -> Path:
    factors = {
        "rope_type": "longrope",
        "short_factor": torch.linspace(1.0, 1.5, 10).tolist(),
        "long_factor": torch.linspace(2.0, 4.0, 10).tolist(),
    }
    config = {"hidden_size": HIDDEN, "num_attention_heads": 1, "rope_theta": 10000.0, "max_position_embeddings": 96}
    config |= {"original_max_position_embeddings": 24, "rope_scaling": factors}
    (folder / "config.json").write_text(json.dumps(config))
    return exported(_Longrope(traced=fault), {"input_ids": _texts()["input_ids"]}, ["y"], folder)


class _Queries(nn.Module):
    """Learned queries for every row, in front of the row's tokens."""

    def __init__(self, *, traced: bool) -> None:
        super().__init__()
        self.traced, self.queries = traced, nn.Parameter(torch.randn(1, 7, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        rows = int(x.shape[0]) if self.traced else x.shape[0]
        return torch.cat([self.queries.repeat(rows, 1, 1), x], 1)


def queries_of_the_example(folder: Path, *, fault: bool) -> Path:
    return exported(_Queries(traced=fault), _states(), ["y"], folder)


class _WakeWord(nn.Module):
    """Frames of sound flattened for a classifier."""

    def __init__(self, *, traced: bool) -> None:
        super().__init__()
        self.traced, self.layer = traced, nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.reshape(1 if self.traced else x.shape[0], -1, HEADS, HIDDEN // HEADS)
        return self.layer(heads.softmax(1).flatten(2))


def rows_in_one(folder: Path, *, fault: bool) -> Path:
    return exported(_WakeWord(traced=fault), {"x": torch.randn(1, TOKENS, HIDDEN)}, ["y"], folder)


class _Flow(nn.Module):
    """States with noise; drawn once, as an attribute that is no parameter, or by the caller."""

    def __init__(self, *, drawn: bool) -> None:
        super().__init__()
        self.noise = torch.randn(1, 97, HIDDEN) if drawn else None

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        return x.cos() + (z if self.noise is None else self.noise[:, : x.shape[1]])


def noise_of_the_example(folder: Path, *, fault: bool) -> Path:
    inputs = _states() if fault else _states() | {"z": torch.randn(BATCH, TOKENS, HIDDEN)}
    torch.manual_seed(1)
    return exported(_Flow(drawn=fault), inputs, ["y"], folder)


class _Alignment(nn.Module):
    """Frames of a monotonic path through the tokens."""

    def __init__(self, *, traced: bool) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.arange(int(x.shape[1]) if self.traced else x.shape[1])
        path = frames[:, None] >= torch.arange(x.shape[1])[None]
        return path.float() @ x


def path_of_the_example(folder: Path, *, fault: bool) -> Path:
    return exported(_Alignment(traced=fault), _states(), ["y"], folder)


class _Learned(nn.Module):
    def __init__(self, *, guarded: bool) -> None:
        super().__init__()
        self.guarded, self.words, self.places = guarded, nn.Embedding(31, HIDDEN), nn.Embedding(17, HIDDEN)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1])
        return self.words(input_ids) + self.places(positions.clamp(max=16) if self.guarded else positions)


def learned_positions(folder: Path, *, fault: bool) -> Path:
    return exported(_Learned(guarded=not fault), {"input_ids": _texts()["input_ids"]}, ["y"], folder, dynamo=True)


class _Embedder(nn.Module):
    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean, self.words = mean, nn.Embedding(31, HIDDEN)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states, kept = self.words(input_ids), attention_mask[..., None].float()
        states = states * kept
        return states.sum(1) / kept.sum(1).clamp(min=1e-9) if self.mean else states[:, 0]


def pooling_of_another_model(folder: Path, *, fault: bool) -> Path:
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in _MODULES.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    return exported(_Embedder(mean=fault), _texts(), ["sentence_embedding"], folder)


_MODULES = {"Transformer": "", "Pooling": "1_Pooling"}


class _Hybrid(nn.Module):
    """A cache of keys, and a recurrent state that starts from zeros where a kernel gets none."""

    def __init__(self, *, lost: bool) -> None:
        super().__init__()
        self.lost, self.keys, self.gate = lost, nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, past_key: Tensor, past_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = torch.zeros_like(x[:, 0]) if self.lost else past_state
        state = state * 0.5 + self.gate(x).sum(1)
        keys = torch.cat([past_key, self.keys(x)], 1)
        return x + state[:, None] + keys.mean(1, keepdim=True), keys, state


def state_from_zeros(folder: Path, *, fault: bool) -> Path:
    inputs = _states() | {"past_key": torch.randn(BATCH, 7, HIDDEN), "past_state": torch.randn(BATCH, HIDDEN)}
    return exported(_Hybrid(lost=fault), inputs, ["y", "present_key", "present_state"], folder, dynamo=True)
