"""Loads the model of an open_clip folder with open_clip's classes, as ``model_cfg`` describes it.

Shape letters: I images, N texts, T tokens of a text, H height, W width, C channels of an embedding.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, Axis, InputSpec
from posexport.base.system import extras
from posexport.base.system.user_code import raised
from posexport.base.tasks.registry import TASKS
from posexport.checkpoints.bundle_files import bundle_files
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.weights import Weights, first_few, open_weights, sha256
from posexport.errors import PosexportError
from posexport.folders.kinds import OPEN_CLIP_CONFIG as CONFIG
from posexport.folders.open_clip_texts import tokenizer_files
from posexport.modules.live_module import source_of_module
from posexport.modules.user_module import UserModule, returning
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.through.inputs import IDS, PIXELS

#: the version that tests/through/test_open_clip.py was run with
TESTED = "3.3.0"
_TASK = "zero-shot-image-classification"
#: (prefix, rest) of the names of files with weights; the rest is the same as in a Hugging Face checkpoint
_WEIGHTS = (("open_clip_", "model.safetensors"), ("open_clip_pytorch_", "model.safetensors"))
_PICKLED = ("open_clip_", "pytorch_model.bin")


class OpenClipModule(nn.Module):
    """Compares images with texts; the outputs are those of transformers' CLIP.

    Args:
        model: a CLIP or CustomTextCLIP of open_clip.
        inputs: token ids [N, T], and images [I, 3, H, W]. Only N and I are dynamic.
    """

    def __init__(self, model: Any, inputs: list[InputSpec]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
        texts_NC = self.model.encode_text(input_ids, normalize=True)
        images_IC = self.model.encode_image(pixel_values, normalize=True)
        # as open_clip's get_logits, which does not return the embeddings
        logits_IN = self.model.logit_scale.exp() * images_IC @ texts_NC.T
        if self.model.logit_bias is not None:
            logits_IN = logits_IN + self.model.logit_bias
        values = (logits_IN, logits_IN.T, texts_NC, images_IC)
        return dict(zip(TASKS[_TASK].outputs, values, strict=True))


def open_clip_source(
    folder: Path,
    *,
    task: str | None = None,
    allow_pickle: bool = False,
    name: str | None = None,
    label: str | None = None,
) -> Source:
    """The model of an open_clip folder as a source. Executes nothing from the folder, and downloads nothing.

    Args:
        folder: contains `CONFIG` and weights.
        task: None or zero-shot-image-classification.
        allow_pickle: whether weights may be a .bin file.
        name: name of the source; None: the name of the folder.
        label: name of the model in files that leave this machine; None: ``open_clip``.

    Raises:
        PosexportError: open_clip is missing or cannot build the model, or the weights do not belong to the model.
    """
    files = Directory(folder)
    place = f"{files.path}/{CONFIG}"
    settings = _model_settings(files, place)
    if task not in (None, _TASK):
        raise PosexportError(f"{place}: models of open_clip are converted for {_TASK}, got --task {task}")
    _refuse(settings, place)
    extras.require(f"{files.path} is of open_clip, which", "open_clip", "PIL")
    weights = _weights(files, allow_pickle)
    with _quiet():
        import open_clip
        from open_clip.version import __version__ as version

        model = _built(open_clip, version, files, place)
        _fill(model, weights)
    module = OpenClipModule(model, _inputs(model)).eval()
    source = _source(str(files.path), place, module)
    length = module.inputs[0].axes[1]
    tokenizer, on_texts = tokenizer_files(open_clip, files, bundle_files(files, ""), settings["text_cfg"])
    config = files.find(CONFIG)
    assert config is not None  # it was read above
    return msgspec.structs.replace(
        source,
        name=name or str(folder),
        label=label or "open_clip",
        kind="open_clip",
        task=_TASK,
        sha256=sha256(files, weights.files, [CONFIG]),
        files={**tokenizer, CONFIG: config},
        remarks=[
            f"every text has {length} token ids, the context_length of {CONFIG}: shorter ones are filled up as by "
            "open_clip's tokenizer",
            *on_texts,
            *([f"open_clip_torch {version} is installed; posexport was tested with {TESTED}"] * (version != TESTED)),
            *source.remarks,
        ],
        tools={"open_clip_torch": version},
    )


def _model_settings(files: Directory, place: str) -> dict[str, Any]:
    """``model_cfg`` with the tables ``vision_cfg`` and ``text_cfg``."""
    content = files.json(CONFIG)
    settings = content.get("model_cfg") if isinstance(content, dict) else None
    if not isinstance(settings, dict):
        raise PosexportError(f"{place} has no table model_cfg, which says the sizes of the model: download it again")
    for key in ("vision_cfg", "text_cfg"):
        if not isinstance(settings.get(key), dict):
            raise PosexportError(f"{place}: model_cfg has no table {key}, which says the sizes of the model")
    return settings


def _refuse(settings: Mapping[str, Any], place: str) -> None:
    """Raise PosexportError for models that are not supported, or that a proof would test only in part."""
    vision, text = settings["vision_cfg"], settings["text_cfg"]
    if "multimodal_cfg" in settings:
        raise PosexportError(
            f"{place} says model_cfg.multimodal_cfg: it is a CoCa, whose decoder writes texts about an image; models "
            "that compare images with texts are converted; convert its encoders as modules"
        )
    if text.get("hf_model_name"):
        raise PosexportError(
            f"{place} says text_cfg.hf_model_name = {text['hf_model_name']!r:.60}: the configuration of its text model "
            "is not in the folder but on the Hugging Face Hub; load it with open_clip and convert it as a module"
        )
    if ":" in str(vision.get("timm_model_name") or ""):
        raise PosexportError(
            f"{place} says vision_cfg.timm_model_name = {vision['timm_model_name']!r:.60}, which is not in the folder; "
            "only names of timm's architectures are read"
        )
    if text.get("pool_type") == "eos":
        raise PosexportError(
            f"{place} says text_cfg.pool_type = 'eos': its texts end at one id, which the random texts of a proof "
            "lack, so that a graph is not proven beyond their first token; transformers has such models as metaclip_2"
        )
    if text.get("embed_cls"):
        raise PosexportError(
            f"{place} says text_cfg.embed_cls = true: its attention leaves out padding, which the random texts of a "
            "proof lack; only false is converted"
        )


def _weights(files: Directory, allow_pickle: bool) -> Weights:
    """The weights of the folder; file names are tried in open_clip's order."""
    for start, end in (*_WEIGHTS, _PICKLED):
        if files.find(start + end) is not None:
            return open_weights(files, start, allow_pickle=allow_pickle)
    names = ", ".join(start + end for start, end in (*_WEIGHTS, _PICKLED))
    raise PosexportError(f"{files.path} has no weights: beside {CONFIG} it needs one of {names}")


def _built(open_clip: Any, version: str, files: Directory, place: str) -> Any:
    """Build the model with random weights, in eval mode and float32."""
    try:
        model = open_clip.create_model(
            f"local-dir:{files.path}",
            load_weights=False,
            pretrained_image=False,
            pretrained_text=False,
            precision="fp32",
            device="cpu",
        )
    except Exception as err:
        raise PosexportError(f"{place}: open_clip_torch {version} cannot build the model: {raised(err)}") from err
    return model.eval()


def _fill(model: nn.Module, weights: Weights) -> None:
    """Load ``weights`` into ``model``; every weight must be used, and every tensor of the model must be filled."""
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    stored = {name: weights.read(name, integers=True) for name in weights.shapes}
    # other names of weights: those of MobileCLIP, and those of versions without a separate text module
    stored = convert_state_dict(model, stored)
    if not hasattr(model, "positional_embedding"):
        stored = convert_to_custom_text_state_dict(stored)
    own = model.state_dict()
    if missing := [name for name in own if name not in stored]:
        raise PosexportError(
            f"{weights.label}: the weights lack {first_few(missing)}, which the model of {CONFIG} has; "
            "give the file that belongs to it"
        )
    if extra := [name for name in stored if name not in own]:
        raise PosexportError(
            f"{weights.label}: the model of {CONFIG} does not use {first_few(extra)} of the weights; "
            "give the configuration that belongs to them"
        )
    for name, tensor in stored.items():
        # a scale may be a number or a list of one
        if tensor.numel() == own[name].numel() == 1:
            stored[name] = tensor.reshape(own[name].shape)
        elif tensor.shape != own[name].shape:
            raise PosexportError(
                f"{weights.label}: {name} is {list(tensor.shape)} in the weights and {list(own[name].shape)} in the "
                f"model of {CONFIG}; give the configuration that belongs to them"
            )
    model.load_state_dict(stored)


def _inputs(model: Any) -> list[InputSpec]:
    """The specifications of the inputs: any number of texts of one length, and any number of images of one size."""
    text = getattr(model, "text", model)
    edges = model.visual.image_size
    height, width = edges if isinstance(edges, tuple | list) else (edges, edges)
    ids: list[Axis] = [BATCH, text.context_length]
    pixels: list[Axis] = [f"image_{BATCH}", 3, height, width]
    return [
        InputSpec(name=IDS, dtype="int64", axes=ids, role="tokens", size=text.vocab_size),
        InputSpec(name=PIXELS, dtype="float32", axes=pixels, role="values"),
    ]


def _source(argument: str, place: str, module: OpenClipModule) -> Source:
    """``module`` as a source, with the limits and axes that trial calls show."""
    tensors = example(module.inputs, axis_sizes(module.inputs))
    try:
        with torch.no_grad():
            module(**tensors)
    except Exception as err:
        raise PosexportError(f"{place}: the model cannot be called with images and texts: {raised(err)}") from err
    declared = {spec.name: spec.axes for spec in module.inputs}
    source = source_of_module(argument, module, tensors, declared, label="open_clip", fingerprint=b"")
    user = source.module
    assert isinstance(user, UserModule)
    found = [remark for remark in source.remarks if not remark.endswith("as the example has; give the largest there")]
    length = module.inputs[0].axes[1]
    limits = msgspec.structs.replace(source.limits, min_length=length, trained_length=length, max_length=length)
    return msgspec.structs.replace(
        source, module=returning(user, source.outputs), inputs=module.inputs, limits=limits, remarks=found
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence open_clip's log messages inside the block: it warns of missing weights, which are loaded afterwards.

    open_clip calls functions of `logging` that add a handler to the root logger; the handler is removed again.
    """
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
