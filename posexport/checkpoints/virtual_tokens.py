"""Virtual tokens as peft saves them: prompt tuning, P-tuning (its evaluated prompt encoder), and prefix tuning.

``adapter_model.safetensors`` has one tensor, ``prompt_embeddings``: the embeddings of the virtual tokens, [N, C], or of
prefix tuning [N, 2 * layers * heads * D], key and value of each layer in turn. Both are put before a decoder as keys
and values (`posexport.models.with_prefix`).

Shape letters: N virtual tokens, C channels of the token table, G KV heads, D head size.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.checkpoints.adapter import CONFIG, base_of, opened, settings_of
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError
from posexport.models.cached_decoder import CachedDecoder, pairs
from posexport.models.forward_decoder import ForwardDecoder
from posexport.models.with_prefix import WithPrefix, shortened
from posexport.nn.caching import KeysAndValues
from posexport.sources.embeddings_input import with_table
from posexport.sources.lazy_parameters import materialize
from posexport.sources.source import Model

_PREFIX, _TENSOR = "PREFIX_TUNING", "prompt_embeddings"
KINDS = ("PROMPT_TUNING", "P_TUNING", _PREFIX)
_OTHERS = ("CARTRIDGE", "CPT", "MULTITASK_PROMPT_TUNING")
_TASK = {"CAUSAL_LM": "text-generation"}
_SUBMODULES = "num_transformer_submodules"
_READ = {"base_model_name_or_path", "num_virtual_tokens", "peft_type", "task_type", _SUBMODULES}
#: keys that the shapes of tensors say too, or that only training reads
_IDLE = {
    "auto_mapping",
    "encoder_dropout",
    "encoder_hidden_size",
    "encoder_num_layers",
    "inference_mode",
    "init_weights",
}
_IDLE |= {"encoder_reparameterization_type", "num_attention_heads", "num_layers", "peft_version", "prefix_projection"}
_IDLE |= {"prompt_tuning_init", "prompt_tuning_init_text", "revision", "token_dim", "tokenizer_kwargs"}
_IDLE |= {"tokenizer_name_or_path"}


@dataclass(frozen=True)
class VirtualTokens:
    """The virtual tokens in a folder, and the folder of their model.

    Attributes:
        label: their folder in messages.
        base: the model's folder.
        kind: of `KINDS`.
        tensor: ``prompt_embeddings``.
        files: what they were read from, by names that are none of the model's files.
        task: what they were trained for.
    """

    label: str
    base: Directory
    kind: str
    tensor: Tensor
    files: dict[str, Path]
    task: str

    @property
    def remark(self) -> str:
        return (
            f"{self.label} has {len(self.tensor)} virtual tokens ({self.kind}); their keys and values are in the graph "
            f"of the model in {self.base.path}"
        )


def read(files: Directory, *, allow_pickle: bool) -> VirtualTokens | None:
    """The virtual tokens in a folder that has no model; None where it has none.

    Raises:
        PosexportError: its model is not there, or they are for another task than text-generation.
    """
    if files.find("config.json") is not None or files.find(CONFIG) is None:
        return None
    settings, label = settings_of(files), f"{files.path}/{CONFIG}"
    kind = settings.get("peft_type")
    if kind in _OTHERS:
        raise PosexportError(f"{label} says peft_type = {kind}; of virtual tokens {', '.join(KINDS)} are converted")
    if kind not in KINDS:
        return None
    if (task := settings.get("task_type")) not in _TASK or settings.get(_SUBMODULES) not in (None, 1):
        raise PosexportError(
            f"{label} says task_type = {task!r:.40}; virtual tokens are put before decoders that generate (CAUSAL_LM)"
        )
    if other := sorted(key for key, value in settings.items() if value and key not in _READ | _IDLE):
        raise PosexportError(f"{label} sets {', '.join(other)}, which is no part of plain {kind}; it is not converted")
    reader, path = opened(files, allow_pickle=allow_pickle)
    if [*reader.shapes] != [_TENSOR] or len(reader.shapes[_TENSOR]) != 2:
        raise PosexportError(
            f"{path} must have one matrix, {_TENSOR}, got {', '.join(sorted(reader.shapes)[:3])}; save it with peft's "
            "save_pretrained"
        )
    tensor = reader.read(_TENSOR).float()
    if not bool(tensor.isfinite().all()) or len(tensor) != settings.get("num_virtual_tokens"):
        raise PosexportError(
            f"{path}: {_TENSOR} must be finite numbers for num_virtual_tokens = "
            f"{settings.get('num_virtual_tokens')!r:.20} tokens, got the shape {list(tensor.shape)}"
        )
    config_file = files.find(CONFIG)
    assert config_file is not None
    return VirtualTokens(
        label=str(files.path),
        base=base_of(files, settings.get("base_model_name_or_path")),
        kind=str(kind),
        tensor=tensor,
        files={f"adapter/{CONFIG}": config_file, f"adapter/{path.name}": path},
        task=_TASK[str(task)],
    )


def put_before(model: Model, tokens: VirtualTokens) -> Model:
    """The model with virtual tokens before every row.

    Raises:
        PosexportError: it is no decoder with a KV cache, or tokens of another model, or it counts distances by slots.
    """
    decoder = model.module
    if not isinstance(decoder, CachedDecoder) or isinstance(decoder, ForwardDecoder) or model.task != tokens.task:
        raise PosexportError(
            f"{tokens.label} has virtual tokens, which are put before decoders for {tokens.task} whose layers write a "
            f"KV cache themselves; its model, for {model.task}, is none; give the base model without them"
        )
    _check_distances(decoder, tokens.label)
    materialize(decoder.parameters())  # the tokens' keys and values are computed
    virtual = len(tokens.tensor)
    if model.limits.max_length is not None and virtual >= model.limits.max_length:
        raise PosexportError(
            f"{tokens.label} has {virtual} virtual tokens, and its model takes {model.limits.max_length} tokens in all"
        )
    shapes = [spec.axes for spec in decoder.inputs if spec.role == "cache"]
    prefix = _split(tokens, shapes) if tokens.kind == _PREFIX else _computed(decoder, model, tokens)
    result = WithPrefix(decoder, prefix)
    return msgspec.structs.replace(
        model,
        module=result.eval(),
        inputs=result.inputs,
        limits=shortened(model.limits, virtual),
        further=[length - virtual for length in model.further if length > virtual],
    )


def _check_distances(decoder: CachedDecoder, label: str) -> None:
    """Padding is between virtual tokens and a row's: terms of distances count it, rotations and embeddings do not."""
    windows = [layer for layer in getattr(decoder, "layers", []) if layer.window or layer.biased]
    terms = [encoding.spec.name for encoding in decoder.encodings if {*encoding.attention_hooks} - {"rotate"}]
    if windows or terms:
        what = terms[0] if terms else "sliding windows"
        raise PosexportError(
            f"{label} has virtual tokens, and its model has {what}: only rotations and position embeddings are "
            "supported there; give the embeddings yourself, to a bundle made with --input embeddings"
        )
    if decoder.limits.length_dependent or any(spec.role == "state" for spec in decoder.inputs):
        raise PosexportError(
            f"{label} has virtual tokens, and its model keeps states, or keys that depend on the length of a row; give "
            "the embeddings yourself, to a bundle made with --input embeddings"
        )


def _split(tokens: VirtualTokens, shapes: list[list[Any]]) -> list[KeysAndValues]:
    """Keys and values of prefix tuning, [1, G, N, D] each; ``shapes``: of the cache's inputs, [B, G, P, D]."""
    sizes = [heads * size for _, heads, _, size in shapes]
    if sum(sizes) != tokens.tensor.shape[1]:
        raise PosexportError(
            f"{tokens.label}: a virtual token has {tokens.tensor.shape[1]} numbers, and keys and values of the model "
            f"in {tokens.base.path} have {sum(sizes)}; give the model that they were trained for"
        )
    tensors = zip(torch.split(tokens.tensor, sizes, 1), shapes, strict=True)
    return pairs([x.reshape(-1, heads, size).transpose(0, 1)[None] for x, (_, heads, _, size) in tensors])


def _computed(decoder: CachedDecoder, model: Model, tokens: VirtualTokens) -> list[KeysAndValues]:
    """The keys and values that the model computes of the embeddings of virtual tokens."""
    copy, table = with_table(decoder, model.inputs, model.limits.trace_sizes, tokens.label)
    if (width := table.table.embedding_dim) != tokens.tensor.shape[1]:
        raise PosexportError(
            f"{tokens.label}: virtual tokens have {tokens.tensor.shape[1]} channels, and tokens of the model in "
            f"{tokens.base.path} {width}; give the model that they were trained for"
        )
    mask_1N = torch.ones((1, len(tokens.tensor)), dtype=torch.int64)
    with torch.no_grad():
        _, *present = copy(input_ids=tokens.tensor[None], attention_mask=mask_1N)
    return pairs([x.float() for x in present])
