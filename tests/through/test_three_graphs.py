"""Models of images and text as three graphs: a toy in transformers' form, which needs no transformers."""

from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.base.spec import BATCH, IMAGES, PATCHES, SEQUENCE, InputSpec, Limits, OutputSpec
from posexport.errors import PosexportError
from posexport.inspect.explain.explanation import explain
from posexport.modules.live_module import source_of_module
from posexport.run.feeds import prepare as prepare_feeds
from posexport.serve.layouts.transformers_js import arrange
from posexport.sources import prepare
from posexport.sources.source import Source, spec_of
from posexport.through.attention import attention
from posexport.through.blocks import BLOCKS, BlocksDecoder
from posexport.through.decoder_source import decoder_source
from posexport.through.embeds import embeds_decoder
from posexport.through.grids import Patches
from posexport.through.module import TransformersModule
from posexport.through.mrope import MRopeDecoder
from posexport.through.towers import Sizes, Tower
from posexport.through.vision import EMBEDS, ThroughVision, _vision
from tests.tolerances import agree

VOCAB, WIDTH, HEADS, LONGEST = 23, 12, 3, 40


class Toy(nn.Module):
    """A decoder of one layer with a table of positions, or three where tokens have three positions."""

    is_causal = True

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.tables = nn.ModuleList(nn.Embedding(LONGEST, WIDTH) for _ in range(3))
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        position_ids: Tensor,
        attention_mask: Tensor,
        return_dict: bool,
    ) -> dict[str, Tensor]:
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        numbers_3BT = position_ids.expand(3, *position_ids.shape[-2:])
        for table, ids_BT in zip(self.tables, numbers_3BT, strict=True):
            x = x + table(ids_BT)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        context, _ = attention(self, q, k, v, None)
        return {"logits": self.out(x + context.flatten(2))}


class Square(Tower):
    """Images of 6 x 6 pixels to 4 features."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.inputs = [InputSpec(name="pixel_values", dtype="float32", axes=[BATCH, 3, 6, 6], role="values")]
        self.patches = nn.Conv2d(3, WIDTH, 3, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        features: Tensor = self.patches(pixel_values).flatten(2).mT
        return features


class Packed(Tower):
    """Patches of images of any size to what a table of rows and one of columns say of them, by tokens of 2 x 2."""

    decoder = MRopeDecoder
    graph_names = MappingProxyType({"image_grid_thw": "grid_thw"})
    sizes = Sizes(({PATCHES: 24, IMAGES: 1}, {PATCHES: 48, IMAGES: 2}), {PATCHES: 68, IMAGES: 2}, {PATCHES: 4})

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.inputs = [
            InputSpec(name="pixel_values", dtype="float32", axes=[PATCHES, 5], role="values"),
            InputSpec(name="image_grid_thw", dtype="int64", axes=[IMAGES, 3], role="grids", size=2),
        ]
        self.project, self.tables = nn.Linear(5, WIDTH), nn.ModuleList(nn.Embedding(64, WIDTH) for _ in range(2))

    @property
    def outputs(self) -> list[OutputSpec]:
        return [OutputSpec(name="image_features", axes=["num_image_tokens", WIDTH])]

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        at = Patches(image_grid_thw, pixel_values.shape[0], 2)
        x_NC = self.project(pixel_values)
        for table, places_N in zip(self.tables, (at.row_N, at.column_N), strict=True):
            x_NC = x_NC + table(places_N)
        mask_NN = (at.frame_N[:, None] == at.frame_N).to(x_NC.dtype)
        means_NC = mask_NN @ x_NC / mask_NN.sum(1, keepdim=True)
        features: Tensor = (x_NC * means_NC).unflatten(0, (-1, 4)).sum(1)
        return features


class Blocks(Square):
    """Images whose tokens attend to one another."""

    decoder, more = BlocksDecoder, (BLOCKS,)


def toy(kind: type[Tower] = Square) -> Source:
    torch.manual_seed(0)
    model, tower, axes = Toy().eval(), kind().eval(), [BATCH, SEQUENCE]  # type: ignore[call-arg]
    ids = InputSpec(name="input_ids", dtype="int64", axes=[*axes], role="tokens", size=VOCAB)
    mask = InputSpec(name="attention_mask", dtype="int64", axes=[*axes], role="mask")
    text = TransformersModule(model, ("logits",), [ids, mask], with_positions=True).eval()
    decoder = decoder_source(source_of_module("toy", text, label="toy", fingerprint=b""), 1)
    embeds = embeds_decoder(decoder, text, model.embed, EMBEDS, tower.decoder, tower.more, 1)
    whole = ThroughVision(_vision("toy", tower), tower, tower.embed(model), embeds, ids).eval()
    spec = msgspec.structs.replace(spec_of(whole, "image-text-to-text"), encoding=None, encodings=[])
    return msgspec.structs.replace(
        decoder, **spec.facts, kind="transformers", module=whole, promises=whole.promises, parts=whole.parts
    )


@pytest.fixture
def converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[Source, posexport.Session]:
    """The toy with the tower and the KV cache that the test is about, proven, and its bundle."""
    kind, cache = request.param
    source = toy(kind)
    monkeypatch.setattr(prepare, "load_source", lambda *_, **__: source)
    result = posexport.convert("toy", tmp_path / "toy", cache=cache, lengths=[5, 17])
    assert result.good, result.verdict
    return source, posexport.load(tmp_path / "toy")


def answers(source: Source, given: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Of the definition, with an empty cache."""
    with torch.no_grad():
        outputs = source.module(**{name: torch.from_numpy(x) for name, x in given.items()})
    return dict(zip([spec.name for spec in source.outputs], outputs, strict=True))


def packed(seed: int = 0) -> dict[str, np.ndarray]:
    """Two rows of tokens with three positions each, and two images, the second of two frames."""
    rng = np.random.default_rng(seed)
    ids_BT = rng.integers(0, VOCAB, (2, 7))
    return {
        "input_ids": ids_BT,
        "position_ids": rng.integers(0, LONGEST, (3, 2, 7)),
        "attention_mask": np.ones_like(ids_BT),
        "pixel_values": rng.standard_normal((56, 5)).astype(np.float32),
        "image_grid_thw": np.array([[1, 4, 6], [2, 2, 8]]),
    }


def test_a_token_has_three_positions_which_text_has_by_its_number() -> None:
    source, given = toy(Packed), packed()
    logits = answers(source, given)["logits"]
    for axis in range(3):
        other = given["position_ids"].copy()
        other[axis] = (other[axis] + 1) % LONGEST
        assert float((answers(source, {**given, "position_ids": other})["logits"] - logits).abs().max()) > 0.1
    counted = np.broadcast_to(np.arange(7), (3, 2, 7)).copy()
    of_text = answers(source, {**given, "position_ids": counted})["logits"]
    for default in (np.full_like(counted, -1), np.where(np.arange(7) < 3, counted, -1)):
        agree(answers(source, {**given, "position_ids": default})["logits"], of_text, "model", np.float32)
    # what attends to what does not follow from them
    first = {
        name: x[..., :4] if name in ("input_ids", "position_ids", "attention_mask") else x for name, x in given.items()
    }
    agree(answers(source, first)["logits"], logits[:, :4], "model", np.float32)


@pytest.mark.all
@pytest.mark.parametrize("converted", [(Packed, "dynamic")], indirect=True)
def test_graphs_take_three_positions_and_images_of_any_size(converted: tuple[Source, posexport.Session]) -> None:
    source, session = converted
    given = packed()
    outputs, wanted = session.run(given, outputs=["logits", "image_features"]), answers(source, given)
    for name, output in outputs.items():
        agree(output, wanted[name], "model", np.float32)
    text = answers(source, {**given, "position_ids": np.full_like(given["position_ids"], -1)})["logits"]
    got = session.run({"input_ids": given["input_ids"]}, outputs=["logits"])["logits"]
    agree(got, text, "model", np.float32)
    assert session.generate([[3, 1, 4]], max_new_tokens=2).completions[0].tokens
    assert [spec.name for spec in source.parts[0].spec.inputs] == ["pixel_values", "grid_thw"]


@pytest.mark.parametrize(
    ("grids", "said"),
    [
        ([[1, 4, 6], [1, 2, 2]], "image_grid_thw has 28 patches together, pixel_values has num_patches 24"),
        ([[1, 3, 8]], r"image_grid_thw holds \[1, 3, 8\] at \[0\]; it takes frames, rows and columns of patches"),
        ([[0, 4, 6]], "from 1 on, rows and columns in multiples of 2"),
    ],
)
def test_grids_that_do_not_fit_the_patches_are_refused(grids: list[list[int]], said: str) -> None:
    inputs = Packed().inputs
    with pytest.raises(PosexportError, match=said):
        prepare_feeds({"pixel_values": np.ones((24, 5), np.float32), "image_grid_thw": grids}, inputs, Limits())


def test_patches_of_images_stand_where_loops_put_them() -> None:
    """Token by token, of 2 x 2 patches, row by row."""
    grids = [(1, 4, 6), (2, 2, 4), (1, 2, 2)]
    patches = [
        (image * 9 + frame, 2 * row + i, 2 * column + j)
        for image, (frames, rows, columns) in enumerate(grids)
        for frame in range(frames)
        for row in range(rows // 2)
        for column in range(columns // 2)
        for i in range(2)
        for j in range(2)
    ]
    at = Patches(torch.tensor(grids), len(patches), 2)
    frames_N, rows_N, columns_N = zip(*patches, strict=True)
    assert (at.row_N.tolist(), at.column_N.tolist()) == (list(rows_N), list(columns_N))
    assert at.frame_N.tolist() == [sorted(set(frames_N)).index(frame) for frame in frames_N]
    windows = [(frame, row // 4, column // 4) for frame, row, column in patches]
    same = [[a == b for b in windows] for a in windows]
    numbers_N = at.windows(4)
    assert (numbers_N[:, None] == numbers_N).tolist() == same


def with_types(ids: list[int], types: list[int]) -> dict[str, np.ndarray]:
    ids_BT = np.array([ids])
    pixels = np.ones((1, 3, 6, 6), np.float32)
    mask_BT = np.ones_like(ids_BT)
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "token_type_ids": np.array([types]),
        "pixel_values": pixels,
    }


TYPES = ([0, 1, 1, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0])


def test_tokens_of_an_image_see_later_ones_of_theirs() -> None:
    source = toy(Blocks)
    for types, seen in zip(TYPES, ([1, 2], [], []), strict=True):
        one, other = (answers(source, with_types([3, 1, 4, *ends], types))["logits"] for ends in ([1, 5], [9, 2]))
        changed = (one - other).abs().amax((0, 2)) > 1e-6
        assert [at for at in range(3) if changed[at]] == seen


@pytest.mark.all
@pytest.mark.parametrize("converted", [(Blocks, "dynamic"), (Blocks, "static")], indirect=True)
def test_graphs_let_tokens_of_an_image_see_one_another(converted: tuple[Source, posexport.Session]) -> None:
    _, session = converted
    module = toy(Blocks)  # with a cache that needs no slots
    for types in TYPES:
        given = with_types([3, 1, 4, 1, 5], types)
        wanted = answers(module, given)["logits"]
        agree(session.run(given, outputs=["logits"])["logits"], wanted, "model", np.float32)
    assert session.generate([[3, 1, 4]], max_new_tokens=2).completions[0].tokens


def test_three_graphs_are_proven_and_generate_from_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each graph on its own files; tokens go through the graph of the embeddings in every call."""
    source = toy()
    monkeypatch.setattr(prepare, "load_source", lambda *_, **__: source)
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
