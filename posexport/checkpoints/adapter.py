"""LoRA adapters as peft saves them, and their merger into the weights of the model that they were trained on.

Hu et al., "LoRA" (arXiv:2106.09685): W + (alpha / r) B A, of an embedding its transpose; with ``use_rslora`` alpha over
the square root of r (Kalajdzievski, arXiv:2312.03732). What changes the formula otherwise is refused by its name.

Shape letters: O outputs, I inputs, R rank.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, nn

from posexport.checkpoints.directory import Directory
from posexport.checkpoints.weights import Pickle, Reader, Safetensors, Weights, first_few
from posexport.errors import PosexportError

CONFIG, _SAFE, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
#: segments that peft inserts into the names of the model's tensors
_WITHIN = re.compile(r"\.(base_layer|modules_to_save|original_module)(?=\.)")
#: keys of adapter_config.json that are read here, and keys that only training reads
_READ = {"base_model_name_or_path", "peft_type", "task_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern"}
_READ |= {"use_rslora", "fan_in_fan_out", "modules_to_save", "init_lora_weights"}
_TRAINING = {"auto_mapping", "bias", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode"}
_TRAINING |= {"layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version", "revision"}
_TRAINING |= {"target_modules", "qalora_group_size"}
#: initialisations that leave the base model's weights unchanged
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
#: what an adapter is for, by task
_TASKS = {
    "CAUSAL_LM": "text-generation",
    "SEQ_CLS": "sequence-classification",
    "TOKEN_CLS": "token-classification",
    "SEQ_2_SEQ_LM": "text2text-generation",
    "QUESTION_ANS": "question-answering",
}


@dataclass(frozen=True)
class Product:
    """``scale`` times B A, added to a weight [O, I], or to one that is stored as [I, O], as an ``embedding`` is."""

    a_RI: Tensor
    b_OR: Tensor
    scale: float
    transposed: bool
    embedding: bool = False

    def of(self, weight: Tensor | None) -> Tensor:
        """The weight with it, in float32."""
        assert weight is not None
        added_OI = self.scale * (self.b_OR.double() @ self.a_RI.double())
        return (weight.double() + (added_OI.T if self.transposed else added_OI)).float()

    @property
    def shape(self) -> list[int]:
        """Of the weight as it is stored."""
        shape = [self.b_OR.shape[0], self.a_RI.shape[1]]
        return shape[::-1] if self.transposed else shape


@dataclass(frozen=True)
class Replaced:
    """A whole weight that replaces the model's (``modules_to_save``)."""

    value: Tensor

    def of(self, _: Tensor | None) -> Tensor:
        """Returns the adapter's weight in float32."""
        return self.value.float()

    @property
    def shape(self) -> list[int]:
        return list(self.value.shape)


Change = Product | Replaced


@dataclass(frozen=True)
class Adapter:
    """An adapter and the folder of its model.

    Attributes:
        label: the adapter's folder in messages.
        base: the model's folder.
        changes: by the names that the parameters have in the model.
        files: what it was read from, by names that are none of the model's files.
        task: what it was trained for; None where it does not say.
    """

    label: str
    base: Directory
    changes: Mapping[str, Change]
    files: dict[str, Path]
    task: str | None

    @property
    def remark(self) -> str:
        return f"{self.label} is an adapter; it is merged into the model in {self.base.path}"

    def merged(self, weights: Weights) -> Weights:
        """The model's weights with the adapter's in them."""
        changes = self.matched(weights.shapes, new=True)
        readers: dict[str, Reader] = {name: _Merged(weights, name, change) for name, change in changes.items()}
        return replace(
            weights,
            files=weights.files | self.files,
            readers=weights.readers | readers,
            shapes=weights.shapes | {name: change.shape for name, change in changes.items()},
            dtypes=weights.dtypes | dict.fromkeys(changes, torch.float32),
        )

    def merge_into(self, model: nn.Module) -> None:
        """Change the parameters of a model in memory."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, change in self.matched({key: list(p.shape) for key, p in parameters.items()}, new=False).items():
            parameters[name].data.copy_(change.of(parameters[name].data))

    def matched(self, shapes: Mapping[str, list[int]], *, new: bool) -> dict[str, Change]:
        """The changes by the names of the model's tensors, which may have one more prefix or one less.

        Raises:
            PosexportError: the model lacks the tensor, or has it in another shape. ``new``: a whole weight may be new.
        """
        changes: dict[str, Change] = {}
        for path, change in self.changes.items():
            name = _stored(path, shapes)
            if name is None and new and isinstance(change, Replaced):
                name = path
            if name is None:
                raise PosexportError(
                    f"{self.label} changes {path}, which the model in {self.base.path} does not have; give the model "
                    "that the adapter was trained on, or merge them with peft, merge_and_unload() and "
                    "save_pretrained(DIR), and convert DIR"
                )
            if name in shapes and shapes[name] != change.shape:
                raise PosexportError(
                    f"{self.label} changes {path} of the shape {change.shape}, and it is {shapes[name]} in the model "
                    f"in {self.base.path}; give the model that the adapter was trained on"
                )
            changes[name] = change
        return changes


class _Merged:
    """The reader of one tensor of a model that an adapter changes."""

    def __init__(self, weights: Weights, name: str, change: Change) -> None:
        self._weights, self._change = weights, change
        self.shapes = {name: change.shape}
        self.dtypes: dict[str, torch.dtype | None] = {name: torch.float32}

    def read(self, name: str) -> Tensor:
        """The model's with the adapter's, in float32."""
        return self._change.of(self._weights.read(name) if name in self._weights.shapes else None)

    def as_pages(self, name: str) -> nn.Parameter | None:
        """None: it is computed."""
        return None


def read(files: Directory, *, allow_pickle: bool) -> Adapter | None:
    """The adapter in a folder that has no model; None where there is none.

    Raises:
        PosexportError: its model is not there, or it is of a kind that is not merged.
    """
    if files.find("config.json") is not None or files.find(CONFIG) is None:
        return None
    settings = settings_of(files)
    base = base_of(files, settings.get("base_model_name_or_path"))
    return _read(files, settings, base, tied=_is_tied(base), allow_pickle=allow_pickle)


def read_beside(folder: Path, base: Directory, *, allow_pickle: bool) -> Adapter:
    """The adapter in ``folder``, for the model in ``base``, which the user names.

    Raises:
        PosexportError: there is none, or it is no plain LoRA.
    """
    files = Directory(folder)
    if files.find(CONFIG) is None:
        raise PosexportError(f"{folder} has no {CONFIG}; give the folder of a LoRA adapter as peft saves it")
    return _read(files, settings_of(files), base, tied=False, allow_pickle=allow_pickle)


def settings_of(files: Directory) -> dict[str, Any]:
    """Returns the content of adapter_config.json."""
    settings = files.json(CONFIG)
    if not isinstance(settings, dict):
        raise PosexportError(f"{files.path}/{CONFIG} holds a {type(settings).__name__}; it must be a JSON object")
    return settings


def _read(files: Directory, settings: Mapping[str, Any], base: Directory, *, tied: bool, allow_pickle: bool) -> Adapter:
    _check(f"{files.path}/{CONFIG}", settings)
    reader, path = opened(files, allow_pickle=allow_pickle)
    tensors = {name: reader.read(name) for name in reader.shapes}
    if odd := [name for name, x in tensors.items() if not (x.is_floating_point() and bool(x.isfinite().all()))]:
        raise PosexportError(f"{path}: {odd[0]} holds other values than finite floating-point numbers")
    config_file = files.find(CONFIG)
    assert config_file is not None
    return Adapter(
        label=str(files.path),
        base=base,
        changes=_changes(f"{files.path}/{path.name}", settings, tensors, tied),
        files={f"adapter/{CONFIG}": config_file, f"adapter/{path.name}": path},
        task=_TASKS.get(str(settings.get("task_type"))),
    )


def _check(label: str, settings: Mapping[str, Any]) -> None:
    """Raises PosexportError for adapters that the formula of this file does not merge."""
    if (kind := settings.get("peft_type")) != "LORA":
        raise PosexportError(f"{label} says peft_type = {kind!r:.40}; only LORA is read: {_BY_PEFT}")
    other = [key for key, value in settings.items() if value and key not in _READ | _TRAINING]
    if other:
        raise PosexportError(f"{label} sets {', '.join(other)}, which is no part of plain LoRA: {_BY_PEFT}")
    if (start := settings.get("init_lora_weights")) not in _STARTS:
        raise PosexportError(
            f"{label} says init_lora_weights = {start!r:.40}, which changes the model's own weights too: {_BY_PEFT}"
        )


_BY_PEFT = "merge it with peft, merge_and_unload() and save_pretrained(DIR), and convert DIR"


def base_of(files: Directory, named: object) -> Directory:
    """The folder of the base model: by its name next to the adapter, else the path that the adapter states."""
    if isinstance(named, str) and named:
        folders = (files.path.resolve().parent / PurePath(named).name, Path(named))
        for folder in folders:
            if folder.joinpath("config.json").is_file():
                return Directory(folder)
        if there := [folder for folder in folders if folder.is_dir()]:
            raise PosexportError(
                f"{files.path} is an adapter of the model in {there[0]}, which has no config.json; adapters are merged "
                f"into models of transformers: {_BY_PEFT}"
            )
    raise PosexportError(
        f"{files.path} holds an adapter alone ({CONFIG}), whose model is {named!r:.80}; put the model's folder beside "
        f"it, as {files.path.resolve().parent / PurePath(str(named)).name}, or {_BY_PEFT}"
    )


def opened(files: Directory, *, allow_pickle: bool) -> tuple[Reader, Path]:
    """The tensors of an adapter, and their file."""
    safe, pickled = files.find(_SAFE), files.find(_PICKLE)
    if safe is not None:
        return Safetensors(safe, f"{files.path}/{_SAFE}"), safe
    if pickled is None:
        raise PosexportError(f"{files.path} has {CONFIG} and no {_SAFE}: download it again")
    if not allow_pickle:
        raise PosexportError(
            f"{files.path} has its weights as .bin, a pickle; if you trust it use --allow-pickle, or save it as {_SAFE}"
        )
    return Pickle(pickled, f"{files.path}/{_PICKLE}"), pickled


def _is_tied(base: Directory) -> bool:
    config = base.json("config.json")
    return not isinstance(config, dict) or bool(config.get("tie_word_embeddings", True))


def _changes(label: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], tied: bool) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name, value in tensors.items():
        path = _WITHIN.sub("", name.removeprefix(_PREFIX))
        stem, suffix = _apart(path)
        if suffix in ("lora_B.weight", "lora_embedding_B"):
            continue
        # a whole weight replaces the model's
        if not suffix:
            if "lora_" in path:
                raise PosexportError(f"{label} holds {name}, which is no part of plain LoRA: {_BY_PEFT}")
            changes[path] = Replaced(value)
            continue
        embedding = suffix == "lora_embedding_A"
        if embedding and tied:
            raise PosexportError(
                f"{label} changes the embedding {stem}, whose weights the head shares, and of the head nothing: "
                "merged they would change both; untie them with peft, and convert that"
            )
        # the two matrices of a product that is added
        other = name.replace("lora_embedding_A", "lora_embedding_B").replace("lora_A.", "lora_B.")
        if other not in tensors or value.ndim != 2 or tensors[other].ndim != 2:
            raise PosexportError(
                f"{label}: {name} needs two matrices, A and B, got the shapes {list(value.shape)} and "
                f"{list(tensors[other].shape) if other in tensors else 'none'}; layers of convolutions are not merged: "
                f"{_BY_PEFT}"
            )
        transposed = embedding or bool(settings.get("fan_in_fan_out"))
        scale = _scale(label, settings, stem, value)
        changes[f"{stem}.weight"] = Product(value, tensors[other], scale, transposed, embedding)
    if not changes:
        raise PosexportError(f"{label} holds no tensors of an adapter ({first_few(list(tensors))})")
    return changes


def _apart(path: str) -> tuple[str, str]:
    """The module that a tensor changes, and which LoRA matrix it is; empty for a whole weight."""
    for suffix in ("lora_A.weight", "lora_B.weight", "lora_embedding_A", "lora_embedding_B"):
        if path.endswith(f".{suffix}"):
            return path.removesuffix(f".{suffix}"), suffix
    return path, ""


def _scale(label: str, settings: Mapping[str, Any], stem: str, a_RI: Tensor) -> float:
    """alpha over the rank, or its square root; the first pattern that fits the module overrides both values."""
    rank = _of_pattern(label, settings, "rank_pattern", stem, settings.get("r"))
    alpha = _of_pattern(label, settings, "alpha_pattern", stem, settings.get("lora_alpha"))
    if rank != a_RI.shape[0] or not isinstance(alpha, int | float):
        raise PosexportError(
            f"{label}: {stem} has the rank {a_RI.shape[0]}, and its {CONFIG} says r = {rank!r:.20} and lora_alpha = "
            f"{alpha!r:.20}; download it again"
        )
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _of_pattern(label: str, settings: Mapping[str, Any], key: str, stem: str, default: Any) -> Any:
    patterns = settings.get(key) or {}
    if not isinstance(patterns, dict) or not all(re.fullmatch(r"[\w.]+", name) for name in patterns):
        raise PosexportError(f"{label}: {key} of its {CONFIG} holds more than names of modules: {_BY_PEFT}")
    return next((value for name, value in patterns.items() if f".{stem}".endswith(f".{name}")), default)


def _stored(path: str, names: Collection[str]) -> str | None:
    """The one of ``names`` that is ``path``, or that has a prefix more or less."""
    if path in names:
        return path
    matches = [name for name in names if name.endswith(f".{path}") or path.endswith(f".{name}")]
    return matches[0] if len(matches) == 1 else None
