"""Models of images and text as three graphs: a toy in transformers' form, which needs no transformers."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.explain.explanation import explain
from posexport.export.layouts.transformers_js import arrange
from posexport.sources import prepare
from posexport.sources.live_module import source_of_module
from posexport.sources.of_definition import spec_of
from posexport.sources.source import Source
from posexport.sources.transformers.attention import attention
from posexport.sources.transformers.decoder import decoder_source, embeds_decoder
from posexport.sources.transformers.vision import EMBEDS, ThroughVision, _vision
from posexport.sources.transformers.wrapped import Wrapped
from posexport.spec import BATCH, SEQUENCE, InputSpec

VOCAB, WIDTH, HEADS, LONGEST = 23, 12, 3, 40


class Toy(nn.Module):
    """A decoder of one layer with a table of positions."""

    is_causal = True

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.table = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        position_ids: Tensor,
        attention_mask: Tensor,
        return_dict: bool,
    ) -> dict[str, Tensor]:
        x = (self.embed(input_ids) if inputs_embeds is None else inputs_embeds) + self.table(position_ids)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        context, _ = attention(self, q, k, v, None)
        return {"logits": self.out(x + context.flatten(2))}


class Tower(nn.Module):
    """Images of 6 x 6 pixels to 4 features."""

    several = False

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 3, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        features: Tensor = self.patches(pixel_values).flatten(2).mT
        return features


def toy() -> Source:
    torch.manual_seed(0)
    model, axes = Toy().eval(), [BATCH, SEQUENCE]
    ids = InputSpec(name="input_ids", dtype="int64", axes=[*axes], role="tokens", size=VOCAB)
    mask = InputSpec(name="attention_mask", dtype="int64", axes=[*axes], role="mask")
    pixels = InputSpec(name="pixel_values", dtype="float32", axes=[BATCH, 3, 6, 6], role="values")
    text = Wrapped(model, ("logits",), [ids, mask], numbered=True).eval()
    decoder = decoder_source(source_of_module("toy", text, label="toy", fingerprint=b""), 1)
    embeds = embeds_decoder(decoder, text, model.embed, EMBEDS)
    whole = ThroughVision(_vision("toy", Tower(), pixels), model.embed, embeds, ids).eval()  # type: ignore[arg-type]
    spec = msgspec.structs.replace(spec_of(whole, "image-text-to-text"), encoding=None, encodings=[])
    return msgspec.structs.replace(
        decoder, **spec.facts, kind="transformers", module=whole, promises=whole.promises, parts=whole.parts
    )


def test_three_graphs_are_proven_and_generate_from_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each graph on its own files; tokens go through the graph of the embeddings in every call."""
    source = toy()
    monkeypatch.setattr(prepare, "load_source", lambda *_: source)
    result = posexport.convert("toy", tmp_path / "toy", lengths=[1, 5])
    assert result.good, result.verdict
    files = {path.name for path in (tmp_path / "toy").glob("*.onnx")}
    assert files == {"vision_encoder.onnx", "embed_tokens.onnx", "decoder_model_merged.onnx"}
    session = posexport.load(tmp_path / "toy")
    prompt, ids = [3, 1, 4, 1], [3, 1, 4, 1]
    module = source.module
    for _ in range(6):
        tokens = torch.tensor([ids])
        with torch.no_grad():
            logits = module(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), pixel_values=torch.ones(1, 3, 6, 6)
            )[0]
        ids.append(int(logits[0, -1].argmax()))
    assert session.generate([prompt], max_new_tokens=6).completions[0].tokens == ids[4:]
    # positions that have no default are given to the graph that is timed
    assert [part.file for part in explain(tmp_path / "toy").parts] == [part.spec.file for part in source.parts]
    features = session.run({"pixel_values": np.ones((1, 3, 6, 6), np.float32)}, outputs=["image_features"])
    assert list(features["image_features"].shape) == [1, 4, WIDTH]


def test_a_client_s_folder_has_the_same_three_graphs(tmp_path: Path) -> None:
    source = toy()
    with pytest.raises(PosexportError, match=r"needs a checkpoint with a config\.json"):
        arrange(source)
    (tmp_path / "config.json").write_text("{}")
    cut = arrange(msgspec.structs.replace(source, files={"config.json": tmp_path / "config.json"}))
    assert [part.spec.file for part in cut.parts] == [f"onnx/{part.spec.file}" for part in source.parts]
