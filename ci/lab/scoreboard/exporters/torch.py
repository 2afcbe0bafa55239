"""``torch.onnx.export(dynamo=True)`` with manual dynamic axes: ``CHECKPOINT DIRECTORY TASK``.

As a careful engineer writes it: a sample of two rows, one of them padded, every axis that varies declared dynamic,
and a decoder with its KV cache as inputs and outputs. An encoder-decoder is one graph without a cache. Height and width
of images are dynamic where PyTorch follows it, else only the batch.
"""

import sys
from pathlib import Path
from typing import Any

from ci.lab.scoreboard.samples import Size

ENVIRONMENT = REFERENCE = "scoreboard"
PACKAGES = ("torch", "transformers", "onnxscript")
RENAMES: dict[str, str] = {}
#: what exporters that trace a model see, of decoders with padding on the left
SAMPLE, SAMPLE_LEFT = Size(2, 9, rows=(9, 7), side="right"), Size(2, 9, rows=(9, 7), side="left")
_BATCH, _PAST = 2, 4
#: axes of one size
_FIXED = {
    "pixel_values": (1,), "bbox": (2,), "input_points": (3,), "states": (2,), "actions": (2,), "returns_to_go": (2,),
    **dict.fromkeys(("noise", "task_inputs", "pixel_attention_mask", "spatial_shapes"), (1,)),
}  # fmt: skip


def command(python: Path, checkpoint: Path, into: Path, task: str) -> list[str]:
    """``python -m`` with this module: PyTorch has no command line."""
    return [str(python), "-m", __name__, str(checkpoint), str(into), task]


def stages(into: Path) -> dict[str, Path]:
    """Everything is one graph."""
    return {"first": into / "model.onnx", "step": into / "model.onnx"}


def main(checkpoint: str, directory: str, task: str) -> None:
    from ci.lab.scoreboard.reference import load

    model = load(checkpoint)
    Path(directory).mkdir(parents=True, exist_ok=True)
    path = str(Path(directory, "model.onnx"))
    if task == "text-generation" and (flat := _cache(model)):
        _export_decoder(model, flat, path)
    else:
        _export(model, path)


def _export(model: Any, path: str) -> None:
    """The graph of one call of ``forward``."""
    import torch
    from torch.utils._pytree import tree_leaves

    from ci.lab.scoreboard.samples import accepted

    inputs = traced(model, SAMPLE)
    if model.config.is_encoder_decoder and "decoder_input_ids" in accepted(model):
        inputs["decoder_input_ids"] = torch.arange(6, 6 + 2 * 5).reshape(2, 5)
    sizes = {name: range(x.dim()) for name, x in inputs.items()}
    dims = {name: [axis for axis in axes if axis not in _FIXED.get(name, ())] for name, axes in sizes.items()}
    if inputs.get("pixel_values", torch.zeros(0)).dim() == 3:  # patches
        dims["pixel_values"] = [0]
    if "input_features" in dims:
        dims["input_features"] = [0] if model.config.model_type in ("whisper", "clap") else [0, 1]
    if "past_values" in dims or inputs.get("input_values", torch.zeros(0)).dim() == 3:
        dims = {name: [0] for name in dims}
    for submodule in model.modules():
        if hasattr(getattr(submodule, "config", None), "use_cache"):
            submodule.config.use_cache = False
    # the names that transformers gives the outputs
    leaves = {name: tree_leaves(value) for name, value in model(**inputs).items()}
    names = [name for name, values in leaves.items() for value in values if isinstance(value, torch.Tensor)]
    names = [name if names.count(name) == 1 else f"{name}.{index}" for index, name in enumerate(names)]
    try:
        _to_onnx(model, inputs, dims, names, path)
    except Exception:
        if "pixel_values" not in inputs:
            raise
        _to_onnx(model, inputs, dims | {"pixel_values": [0]}, names, path)


def traced(model: Any, size: Size) -> dict[str, Any]:
    """The inputs that a tokenizer or a processor gives."""
    import torch

    from ci.lab.scoreboard.samples import accepted, sample, tensors

    inputs = tensors(sample(model, size), accepted(model) - {"pixel_mask"}, torch.float32)
    # only some models of sound get a mask
    dropped = ["token_type_ids"] if model.config.is_encoder_decoder else []
    dropped += ["attention_mask"] if "input_values" in inputs else []
    return {name: x for name, x in inputs.items() if name not in dropped}


def _to_onnx(model: Any, inputs: dict[str, Any], dims: dict[str, list[int]], outputs: list[str], path: str) -> None:
    import torch

    shapes = {name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in dims.items()}
    torch.onnx.export(model, (), path, kwargs=inputs, dynamic_shapes=shapes, output_names=outputs, dynamo=True)


def _cache(model: Any) -> list[Any]:
    """Keys and values of all layers after a prompt, where the model's cache has nothing else."""
    import torch

    ids = torch.arange(6, 6 + _BATCH * _PAST).reshape(_BATCH, _PAST)
    outputs = model(input_ids=ids, use_cache=True)
    layers = getattr(outputs.get("past_key_values"), "layers", [])
    flat = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return flat if all(isinstance(x, torch.Tensor) and x.dim() == 4 for x in flat) else []


def _export_decoder(model: Any, flat: list[Any], path: str) -> None:
    """Logits and the grown cache of new tokens after a cached prefix, which may be empty."""
    import torch
    import transformers

    from ci.lab.scoreboard.samples import accepted, mask, positions

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: list[Any]) -> Any:
            cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            taken = {"attention_mask": attention_mask, "past_key_values": cache, "use_cache": True}
            if position_ids is not None:
                taken["position_ids"] = position_ids
            outputs = self.model(input_ids, **taken)
            layers = outputs.past_key_values.layers
            return outputs.logits, *(x for layer in layers for x in (layer.keys, layer.values))

    # two rows of new tokens after a cached prefix, one row padded on the left
    new, total = SAMPLE_LEFT.tokens - _PAST, SAMPLE_LEFT.tokens
    attention = mask(SAMPLE_LEFT)
    takes_positions = "position_ids" in accepted(model)
    inputs = {
        "input_ids": torch.arange(6, 6 + _BATCH * new).reshape(_BATCH, new),
        "attention_mask": torch.from_numpy(attention),
        "position_ids": torch.from_numpy(positions(attention)[:, total - new :]) if takes_positions else None,
        "past": flat,
    }
    dynamic = torch.export.Dim.DYNAMIC
    tokens = {0: dynamic, 1: dynamic}
    shapes = {"input_ids": tokens, "attention_mask": tokens, "position_ids": tokens if takes_positions else None}
    cached = [f"{layer}.{name}" for layer in range(len(flat) // 2) for name in ("key", "value")]
    names = [name for name, x in inputs.items() if isinstance(x, torch.Tensor)]
    torch.onnx.export(
        Cached(), (), path, kwargs=inputs, dynamic_shapes=shapes | {"past": [{0: dynamic, 2: dynamic}] * len(flat)},
        input_names=names + [f"past_key_values.{name}" for name in cached],
        output_names=["logits", *(f"present.{name}" for name in cached)], dynamo=True,
    )  # fmt: skip


if __name__ == "__main__":
    import torch

    with torch.no_grad():
        main(*sys.argv[1:])
