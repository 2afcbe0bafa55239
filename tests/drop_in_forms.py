"""Calls of ``torch.onnx.export`` as they stand in well-known projects' export scripts, around small models of our own.

Each form is a function of the exporter and of where the file goes; the name of the exporter is all that a script
changes.
"""

import io
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Export = Callable[..., Any]
D, H = 12, 2


class Layer(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)
        self.causal = causal

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        bias = None
        if keep is not None:
            bias = (1.0 - keep[:, None, None].to(x.dtype)) * -1e4
        if self.causal:
            bias = torch.ones(T, T, device=x.device).tril().log()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out(y.transpose(1, 2).reshape(B, T, D))


class Bert(nn.Module):
    """Returns what transformers' models do: a mapping, with an entry that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types, self.places = nn.Embedding(31, D), nn.Embedding(2, D), nn.Embedding(64, D)
        self.layer, self.pooler = Layer(), nn.Linear(D, D)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        T = input_ids.shape[1]
        x = self.words(input_ids) + self.places(torch.arange(T, device=input_ids.device))
        if token_type_ids is not None:
            x = x + self.types(token_type_ids)
        x = self.layer(x, attention_mask)
        return OrderedDict(last_hidden_state=x, pooler_output=torch.tanh(self.pooler(x[:, 0])), attentions=None)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, D, 4, stride=4), nn.Conv2d(D, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.silu(self.conv(x))).flatten(2).transpose(1, 2)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, D, 8, stride=8), nn.Parameter(torch.randn(1, 5, D))
        self.token, self.layer, self.head = nn.Parameter(torch.randn(1, 1, D)), Layer(), nn.Linear(D, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.layer(x)[:, 0])


class Detr(nn.Module):
    """A dict with a list of dicts inside, as in the training code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.queries = nn.Conv2d(3, D, 8, stride=8), nn.Parameter(torch.randn(6, D))
        self.cross, self.logits, self.boxes = (
            nn.MultiheadAttention(D, H, batch_first=True),
            nn.Linear(D, 4),
            nn.Linear(D, 4),
        )

    def forward(self, images: Tensor) -> Any:
        x = self.conv(images).flatten(2).transpose(1, 2)
        q = self.queries[None].expand(x.shape[0], -1, -1)
        y = q + self.cross(q, x, x, need_weights=False)[0]
        return {"pred_logits": self.logits(y), "pred_boxes": self.boxes(y).sigmoid()}


class PromptDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(2, D // 2))
        self.labels, self.layer, self.masks = nn.Embedding(4, D), Layer(), nn.Linear(D, 3)

    def forward(self, image_embeddings: Tensor, point_coords: Tensor, point_labels: Tensor) -> tuple[Tensor, Tensor]:
        angles = (point_coords / 64) @ self.frequencies
        points = torch.cat([angles.sin(), angles.cos()], -1) * point_labels[..., None]
        image = image_embeddings.flatten(2).transpose(1, 2)
        x = self.layer(torch.cat([image, points], 1))
        return self.masks(x[:, : image.shape[1]]), x[:, image.shape[1] :].mean(1)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block_size = 48
        self.wte, self.wpe, self.h = nn.Embedding(37, D), nn.Embedding(self.block_size, D), Layer(causal=True)
        self.lm_head = nn.Linear(D, 37, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        return self.lm_head(self.h(x)), None


class CachedDecoder(nn.Module):
    """Cached keys and values as a list of tuples, one a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.q, self.kv, self.out = (
            nn.Embedding(29, D),
            nn.Linear(D, D),
            nn.Linear(D, 2 * D),
            nn.Linear(D, 29),
        )

    def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = True) -> Any:
        x = self.words(input_ids)
        B, T, _ = x.shape
        q = self.q(x).view(B, T, H, -1).transpose(1, 2)
        present = []
        for k, v in past_key_values:
            new_k, new_v = self.kv(x).view(B, T, 2, H, -1).permute(2, 0, 3, 1, 4)
            k, v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
            q = F.scaled_dot_product_attention(q, k, v)
            present.append((k, v))
        return self.out(q.transpose(1, 2).reshape(B, T, D)), tuple(present)


class AudioEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.layer = nn.Conv1d(8, D, 3, padding=1), Layer()
        self.k, self.v = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layer(F.gelu(self.conv(mel)).transpose(1, 2))
        return torch.stack([self.k(x)]), torch.stack([self.v(x)])


class Speech(nn.Module):
    """From phonemes to samples, four for each; ``scales`` are noise, length and width."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.samples = nn.Embedding(23, D), Layer(), nn.Linear(D, 4)

    def forward(self, text: Tensor, text_lengths: Tensor, scales: Tensor, sid: Tensor | None = None) -> Tensor:
        keep = torch.arange(text.shape[1], device=text.device)[None] < text_lengths[:, None]
        y = self.samples(self.layer(self.words(text), keep)) * scales[1]
        return torch.tanh(y * keep[..., None].to(y.dtype)).flatten(1)[:, None, None]


class Acoustic(nn.Module):
    """An encoder of frames that gives how many of them are real as well."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.layer = nn.Linear(8, D), Layer()

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        keep = torch.arange(x.shape[1], device=x.device)[None] < x_lens[:, None]
        return self.layer(self.proj(x), keep), x_lens + 1


class Seq2Seq(nn.Module):
    """``nn.Transformer``-like: masks in which True is what is not attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(19, D), nn.TransformerEncoderLayer(D, H, 20, batch_first=True)

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.layer(self.words(src), src_key_padding_mask=src_key_padding_mask)


@dataclass(frozen=True)
class Form:
    """``like``: whose script has a call of this form. ``fails``: part of what torch 2.13's exporter says of it."""

    name: str
    like: str
    module: type[nn.Module]
    call: Callable[[Export, nn.Module, Path], Any]
    #: other sizes of named axes to compare values at
    sizes: dict[str, int]
    fails: str = ""
    #: lengths to prove at, so that a test is short
    lengths: tuple[int, ...] = (2, 9)


def ids(*shape: int, most: int = 19) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(0))


def real(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def sentence_encoder(export: Export, model: nn.Module, path: Path) -> Any:
    inputs = {
        "input_ids": ids(1, 8),
        "attention_mask": torch.ones(1, 8, dtype=torch.int64),
        "token_type_ids": ids(1, 8, most=2),
    }
    axes = {name: {0: "batch_size", 1: "max_seq_len"} for name in inputs}
    return export(
        model,
        args=tuple(inputs.values()),
        f=path,
        opset_version=14,
        do_constant_folding=True,
        input_names=list(inputs),
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_axes={**axes, "last_hidden_state": axes["input_ids"], "pooler_output": {0: "batch_size"}},
    )


def transformers_onnx(export: Export, model: nn.Module, path: Path) -> Any:
    inputs = {"attention_mask": torch.ones(2, 8, dtype=torch.int64), "input_ids": ids(2, 8)}
    axes = {0: "batch", 1: "sequence"}
    return export(
        model,
        (inputs,),
        f=path.as_posix(),
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_axes={
            "input_ids": axes,
            "attention_mask": axes,
            "last_hidden_state": axes,
            "pooler_output": {0: "batch"},
        },
        do_constant_folding=True,
        opset_version=18,
    )


def detector(export: Export, model: nn.Module, path: Path) -> Any:
    return export(
        model.cpu(),
        real(1, 3, 32, 32),
        str(path),
        verbose=False,
        opset_version=18,
        do_constant_folding=True,
        input_names=["images"],
        output_names=["output0"],
        dynamic_axes={"images": {0: "batch", 2: "height", 3: "width"}, "output0": {0: "batch", 1: "anchors"}},
    )


def tutorial(export: Export, model: nn.Module, path: Path) -> Any:
    x = real(1, 3, 16, 16).requires_grad_()
    return export(
        model,
        x,
        str(path),
        export_params=True,
        opset_version=10,
        do_constant_folding=True,
        input_names=["input"],
        output_names=["output"],
        dynamic_axes={"input": {0: "batch_size"}, "output": {0: "batch_size"}},
    )


def into_a_buffer(export: Export, model: nn.Module, path: Path) -> Any:
    file = io.BytesIO()
    export(
        model,
        real(1, 3, 16, 24),
        file,
        do_constant_folding=False,
        opset_version=18,
        input_names=["inputs"],
        output_names=["pred_logits", "pred_boxes"],
    )
    path.write_bytes(file.getvalue())


def segment(export: Export, model: nn.Module, path: Path) -> Any:
    inputs = {
        "image_embeddings": real(1, D, 3, 3),
        "point_coords": real(1, 5, 2),
        "point_labels": real(1, 5),
    }
    with path.open("wb") as file:
        return export(
            model,
            tuple(inputs.values()),
            file,
            export_params=True,
            verbose=False,
            opset_version=17,
            do_constant_folding=True,
            input_names=list(inputs),
            output_names=["masks", "iou_predictions"],
            dynamic_axes={"point_coords": {1: "num_points"}, "point_labels": {1: "num_points"}},
        )


def language_model(export: Export, model: nn.Module, path: Path) -> Any:
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence", max=48)
    program = export(
        model, (ids(2, 8),), dynamic_shapes={"idx": {0: batch, 1: sequence}}, dynamo=True,
        output_names=["logits"],
    )  # fmt: skip
    program.save(path)


def cached(export: Export, model: nn.Module, path: Path) -> Any:
    past = [(real(2, H, 5, D // H), real(2, H, 5, D // H)) for _ in range(2)]
    names = [f"past_key_values.{i}.{kind}" for i in range(2) for kind in ("key", "value")]
    present = [name.replace("past_key_values", "present") for name in names]
    batch = {0: "batch_size"}
    return export(
        model,
        (ids(2, 3),),
        path,
        kwargs={"past_key_values": past, "use_cache": True},
        input_names=["input_ids", *names],
        output_names=["logits", *present],
        dynamic_axes={
            "input_ids": {0: "batch_size", 1: "sequence_length"},
            **{name: {**batch, 2: "past_sequence_length"} for name in names},
            **{name: {**batch, 2: "total_sequence_length"} for name in present},
        },
        opset_version=18,
    )


def audio_encoder(export: Export, model: nn.Module, path: Path) -> Any:
    return export(
        model,
        real(1, 8, 20),
        str(path),
        opset_version=18,
        input_names=["mel"],
        output_names=["n_layer_cross_k", "n_layer_cross_v"],
        dynamic_axes={
            "mel": {0: "n_audio", 2: "T"},
            "n_layer_cross_k": {1: "n_audio", 2: "T"},
            "n_layer_cross_v": {1: "n_audio", 2: "T"},
        },
    )


def text_to_speech(export: Export, model: nn.Module, path: Path) -> Any:
    inputs = (ids(1, 9), torch.LongTensor([9]), torch.FloatTensor([0.667, 1.0, 0.8]), None)
    return export(
        model=model,
        args=inputs,
        f=str(path),
        verbose=False,
        opset_version=15,
        input_names=["input", "input_lengths", "scales"],
        output_names=["output"],
        dynamic_axes={
            "input": {0: "batch_size", 1: "phonemes"},
            "input_lengths": {0: "batch_size"},
            "output": {0: "batch_size", 3: "time"},
        },
    )


def speech_encoder(export: Export, model: nn.Module, path: Path) -> Any:
    x, x_lens = torch.zeros(2, 12, 8, dtype=torch.float32), torch.tensor([12, 9], dtype=torch.int64)
    return export(
        model,
        (x, x_lens),
        str(path),
        verbose=False,
        opset_version=18,
        input_names=["x", "x_lens"],
        output_names=["encoder_out", "encoder_out_lens"],
        dynamic_axes={
            "x": {0: "N", 1: "T"},
            "x_lens": {0: "N"},
            "encoder_out": {0: "N", 1: "T"},
            "encoder_out_lens": {0: "N"},
        },
    )


def padding_mask(export: Export, model: nn.Module, path: Path) -> Any:
    return export(
        model,
        (ids(2, 7), {"src_key_padding_mask": torch.zeros(2, 7, dtype=torch.bool)}),
        str(path),
        input_names=["src", "src_key_padding_mask"],
        output_names=["memory"],
        dynamic_axes={"src": [0, 1], "src_key_padding_mask": [0, 1], "memory": [0, 1]},
    )


FORMS = [
    Form(
        "sentence encoder",
        "sentence-transformers, FastEmbed",
        Bert,
        sentence_encoder,
        {"batch_size": 3, "max_seq_len": 11},
    ),
    Form("one dict", "transformers.onnx", Bert, transformers_onnx, {"batch": 3, "sequence": 11}),
    Form("detector", "ultralytics/yolov5", Detector, detector, {"batch": 2, "height": 48, "width": 36}, lengths=(24,)),
    Form("tutorial", "PyTorch's tutorial, torchvision and timm", Vit, tutorial, {"batch_size": 3}),
    Form("buffer", "facebookresearch/detr", Detr, into_a_buffer, {}),
    Form(
        "open file",
        "facebookresearch/segment-anything",
        PromptDecoder,
        segment,
        {"num_points": 7},
        fails="Failed to export",
    ),
    Form("dynamic shapes", "nanoGPT, torch.onnx's documentation", Gpt, language_model, {"batch": 3, "sequence": 13}),
    Form(
        "nested cache",
        "optimum",
        CachedDecoder,
        cached,
        {"batch_size": 3, "sequence_length": 2, "past_sequence_length": 6},
        fails="Failed to convert 'dynamic_axes'",
    ),
    Form("audio encoder", "k2-fsa/sherpa-onnx, Whisper", AudioEncoder, audio_encoder, {"n_audio": 2, "T": 27}),
    Form(
        "text to speech",
        "rhasspy/piper",
        Speech,
        text_to_speech,
        {"batch_size": 2, "phonemes": 13},
        fails="Failed to convert 'dynamic_axes'",
    ),
    Form("speech encoder", "k2-fsa/icefall", Acoustic, speech_encoder, {"N": 3, "T": 17}),
    Form(
        "padding mask",
        "PyTorch's nn.Transformer",
        Seq2Seq,
        padding_mask,
        {"src_dynamic_axes_1": 3, "src_dynamic_axes_2": 9},
    ),
]
