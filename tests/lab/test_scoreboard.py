"""The scoreboard's judge: right files are right, broken ones are wrong from the smallest point."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnx.parser
import pytest

from ci.lab.scoreboard.further import further
from ci.lab.scoreboard.graph import File, standard
from ci.lab.scoreboard.judge import Judge
from ci.lab.scoreboard.plan import pairs
from ci.lab.scoreboard.points import captions
from ci.lab.scoreboard.run import reason
from ci.lab.scoreboard.samples import Arrays, Size, mask, positions

#: [B, T, 4] of [B, T] ids: an embedding without a table, and the same of positions
_EMBED = """
    last = Constant <value_ints = [-1]> ()
    waves = Constant <value_floats = [0.7, 1.1, 1.9, 2.3]> ()
    words = Cast <to = 1> (input_ids)
    words3 = Unsqueeze (words, last)
    turned = Mul (words3, waves)
    e = Cos (turned)
    places = Cast <to = 1> (ids)
    places3 = Unsqueeze (places, last)
    angles = Mul (places3, waves)
    c = Sin (angles)
"""
#: ids of positions from the number of tokens
_COUNT = """
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    width = Shape <start = 1, end = 2> (input_ids)
    count = Squeeze (width)
    ids = Range (zero, count, one)
"""
#: every token reads the sum of the real tokens
ENCODER = f"""<ir_version: 8, opset_import: ["": 18]>
encoder (int64[B, T] input_ids, int64[B, T] attention_mask) => (float[B, T, 4] logits) {{
    {_COUNT} {_EMBED}
    m = Cast <to = 1> (attention_mask)
    m3 = Unsqueeze (m, last)
    real = Mul (e, m3)
    tokens = Constant <value_ints = [1]> ()
    read = ReduceSum (real, tokens)
    placed = Add (e, c)
    logits = Add (placed, read)
}}"""
#: every token reads the sum of the real tokens up to it, earlier ones from the cache
DECODER = f"""<ir_version: 8, opset_import: ["": 18]>
decoder (int64[B, N] input_ids, int64[B, S] attention_mask, int64[B, N] position_ids,
         float[B, 1, P, 4] past_key_values_0_key) => (float[B, N, 4] logits, float[B, 1, S, 4] present_0_key) {{
    ids = Identity (position_ids)
    {_EMBED}
    head = Constant <value_ints = [1]> ()
    new = Unsqueeze (e, head)
    present_0_key = Concat <axis = 2> (past_key_values_0_key, new)
    m = Cast <to = 1> (attention_mask)
    m2 = Unsqueeze (m, head)
    m3 = Unsqueeze (m2, last)
    real = Mul (present_0_key, m3)
    two = Constant <value_int = 2> ()
    summed = CumSum (real, two)
    columns = Constant <value_ints = [2]> ()
    from = Shape <start = 2, end = 3> (past_key_values_0_key)
    to = Shape <start = 1, end = 2> (attention_mask)
    recent = Slice (summed, from, to, columns)
    read = Squeeze (recent, head)
    placed = Add (e, c)
    logits = Add (placed, read)
}}"""


class Config:
    vocab_size, max_position_embeddings, pad_token_id = 64, 30, 0

    def get_text_config(self) -> "Config":
        return self


class Words:
    """What the judge reads of a model of transformers."""

    main_input_name, config = "input_ids", Config()

    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> None: ...


class Library:
    """The outputs of ENCODER and DECODER, in NumPy.

    ``chaotic``: float32 misses a tenth of the scale; ``uneven``: 1e-4 of it, where the ids' sum is no multiple of 4.
    ``drifts``: a step adds 9 for every cached token.
    """

    model: Any = Words()

    def __init__(self, *, causal: bool, chaotic: bool = False, uneven: bool = False, drifts: bool = False) -> None:
        self.also: list[Library] = []
        self._causal, self._chaotic, self._uneven, self._drifts = causal, chaotic, uneven, drifts

    def __call__(self, arrays: Arrays, calls: list[int], *, cached: bool = False) -> tuple[Arrays, Arrays]:
        ids = arrays["input_ids"]
        if ids.shape[1] > Config.max_position_embeddings:
            raise IndexError("index out of range in self")
        waves = np.array([0.7, 1.1, 1.9, 2.3])
        e = np.cos(ids[..., None] * waves)
        attention = arrays.get("attention_mask", np.ones_like(ids))[..., None]
        places = arrays.get("position_ids", np.arange(ids.shape[1])[None])
        read = (e * attention).cumsum(1) if self._causal else (e * attention).sum(1, keepdims=True)
        logits = e + np.sin(places[..., None] * waves) + read
        if cached and self._drifts:
            logits[:, calls[0] :] += 9.0 * np.arange(calls[0], ids.shape[1])[:, None]
        missed = 0.1 * self._chaotic + 1e-4 * (self._uneven and ids.sum() % 4 != 0)
        return {"logits": logits}, {"logits": logits + missed * np.abs(logits).max()}


def verdict(text: str, tmp_path: Path, library: Library, kind: str) -> dict[str, Any]:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    file = File(path)
    return Judge({"first": file, "step": file}, library, kind).run().verdict()


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(("text", "kind", "count"), [(ENCODER, "rows", 7), (DECODER, "decoder", 11)])
def test_right_files(text: str, kind: str, count: int, tmp_path: Path) -> None:
    result = verdict(text, tmp_path, Library(causal=kind == "decoder"), kind)
    assert (result["verdict"], result["right"], result["skipped"]) == ("right", count, [])


#: the defect, the edit that makes it, and the point from which it shows
BROKEN = {
    "positions shifted by one": (ENCODER, "Range (zero,", "Range (one,", "batch 1, length 1"),
    "the mask is ignored": (ENCODER, "ReduceSum (real,", "ReduceSum (e,", "right padding to 11/6/1"),
    "positions are counted from the call's first token": (
        DECODER, "ids = Identity (position_ids)", _COUNT, "left padding to 11/6/1",
    ),
    "the cache is not read": (
        DECODER, "(e, c)\n    logits = Add (placed, read)", "(e, c)\n    far = Constant <value_floats = [9.0]> ()\n"
        "    sizes = Shape <start = 2, end = 3> (past_key_values_0_key)\n    some = Cast <to = 1> (sizes)\n"
        "    more = Mul (some, far)\n    logits0 = Add (placed, read)\n    logits = Add (logits0, more)", "step 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_wrong(name: str, tmp_path: Path) -> None:
    text, old, new, point = BROKEN[name]
    text = changed(text, old, new)
    if "call's first token" in name:
        text = changed(text, "ids = Range (zero, count, one)", "ids = Range (one, counted, one)")
        text = changed(text, "count = Squeeze (width)", "count = Squeeze (width)\n    counted = Add (count, one)")
    kind = "rows" if text.startswith(ENCODER[:60]) else "decoder"
    result = verdict(text, tmp_path, Library(causal=kind == "decoder"), kind)
    assert result["verdict"] == "wrong"
    assert point in result["point"] or name.startswith("positions are counted")
    assert result["off"] > 1e-2


def test_steps_as_the_library_takes_them_are_right(tmp_path: Path) -> None:
    text, old, new, _ = BROKEN["the cache is not read"]
    drifting = changed(text, old, new)
    assert verdict(drifting, tmp_path, Library(causal=True, drifts=True), "decoder")["verdict"] == "right"
    assert verdict(drifting, tmp_path, Library(causal=True), "decoder")["verdict"] == "wrong"


def test_both_attentions_of_the_library_are_right(tmp_path: Path) -> None:
    library, default = Library(causal=False), Library(causal=True)
    assert verdict(DECODER, tmp_path, library, "decoder")["verdict"] == "wrong"
    library.also.append(default)
    assert verdict(DECODER, tmp_path, library, "decoder")["verdict"] == "right"


def test_fixed_axes_are_no_faults(tmp_path: Path) -> None:
    fixed = changed(changed(ENCODER, "int64[B, T] input_ids", "int64[1, T] input_ids"), "int64[B, T]", "int64[1, T]")
    result = verdict(fixed, tmp_path, Library(causal=False), "rows")
    assert (result["verdict"], result["right"], len(result["outside"])) == ("sizes", 3, 4)
    # the same shape without the declaration is a file that fails to run
    frozen = changed(ENCODER, "placed = Add (e, c)", "one_row = Constant <value_ints = [1, -1, 4]> ()\n"
                     "    rows = Reshape (e, one_row)\n    placed = Add (rows, c)")  # fmt: skip
    assert verdict(frozen, tmp_path, Library(causal=False), "rows")["verdict"] in ("fails", "wrong")


def test_what_the_judge_does_not_know_is_no_fault(tmp_path: Path) -> None:
    more = changed(ENCODER, "attention_mask) =>", "attention_mask, float[B] temperature) =>")
    result = verdict(more, tmp_path, Library(causal=False), "rows")
    assert (result["verdict"], "temperature" in result["said"]) == ("unjudged", True)
    other = changed(ENCODER, "logits", "scores")
    assert "no output logits, but scores" in verdict(other, tmp_path, Library(causal=False), "rows")["said"]


def test_a_file_without_a_mask_is_judged_without_padding(tmp_path: Path) -> None:
    bare = changed(ENCODER, ", int64[B, T] attention_mask", "")
    bare = changed(changed(bare, "m = Cast <to = 1> (attention_mask)", ""), "m3 = Unsqueeze (m, last)", "")
    bare = changed(bare, "real = Mul (e, m3)", "real = Identity (e)")
    result = verdict(bare, tmp_path, Library(causal=False), "rows")
    assert (result["verdict"], result["right"], len(result["outside"])) == ("sizes", 5, 2)


def test_what_pytorch_misses_itself_is_no_fault(tmp_path: Path) -> None:
    shifted = changed(ENCODER, "Range (zero,", "Range (one,")
    assert verdict(shifted, tmp_path, Library(causal=False, chaotic=True), "rows")["verdict"] != "right"
    off = changed(ENCODER, "logits = Add (placed, read)", "tiny = Constant <value_floats = [0.01]> ()\n"
                  "    near = Add (placed, read)\n    logits = Add (near, tiny)")  # fmt: skip
    assert verdict(off, tmp_path, Library(causal=False), "rows")["verdict"] == "wrong"
    assert verdict(off, tmp_path, Library(causal=False, chaotic=True), "rows")["verdict"] == "right"


def test_rounding_that_other_inputs_show_is_no_fault(tmp_path: Path) -> None:
    off = changed(ENCODER, "logits = Add (placed, read)", "most = Constant <value_floats = [1.0005]> ()\n"
                  "    near = Add (placed, read)\n    logits = Mul (near, most)")  # fmt: skip
    assert verdict(off, tmp_path, Library(causal=False), "rows")["verdict"] == "wrong"
    assert verdict(off, tmp_path, Library(causal=False, uneven=True), "rows")["verdict"] == "right"
    more = changed(off, "1.0005", "1.002")
    assert verdict(more, tmp_path, Library(causal=False, uneven=True), "rows")["verdict"] == "wrong"
    # steps behind a prompt of which only rounding is off
    text, old, new, _ = BROKEN["the cache is not read"]
    text = changed(text, old, new)
    steps = changed(text, "logits = Add (logits0, more)", "near = Add (logits0, more)\n"
                    "    most = Constant <value_floats = [1.0005]> ()\n    logits = Mul (near, most)")  # fmt: skip
    exact = verdict(text, tmp_path, Library(causal=True), "decoder")
    assert verdict(steps, tmp_path, Library(causal=True, uneven=True), "decoder")["wrong"] >= exact["wrong"] > 1


def test_names_of_caches_and_of_nested_errors() -> None:
    assert standard("past_key_values.0.key", {}) == standard("present.0.key", {}) == "cache.0.key"
    assert standard("input.past_key_values.layers.0.keys", {}) == "cache.layers.0.keys"
    assert standard("past_values", {}) == "past_values"
    assert standard("attention_mask", {"attention_mask": "encoder_attention_mask"}) == "encoder_attention_mask"
    nested = "ValueError: the cause\nx.TorchExportError: Failed in step 1/3\n<class 'x'>"
    assert reason("", nested) == "ValueError: the cause"
    assert reason("done", "UserWarning: old\n  KeyError: 'llama'") == "KeyError: 'llama'"


def test_samples_and_the_plan() -> None:
    assert mask(Size(2, 4, rows=(4, 1), side="left")).tolist() == [[1, 1, 1, 1], [0, 0, 0, 1]]
    assert positions(np.array([[0, 0, 1, 1]])).tolist() == [[0, 0, 0, 1]]
    entries = pairs()
    assert len(entries) >= 180
    assert list(entries)[:2] == ["bert", "roberta"]
    assert len({entry["group"] for entry in list(entries.values())[12:24]}) > 8


#: twice the pixels, then the brightest of them beside every prompt
SEES = """<ir_version: 8, opset_import: ["": 18]>
sees (float[B, 3, 8, 8] pixel_values) => (float[B, 3, 8, 8] image_embeddings) {
    image_embeddings = Add (pixel_values, pixel_values)
}"""
MASKS = """<ir_version: 8, opset_import: ["": 18]>
masks (float[B, 3, 8, 8] image_embeddings, float[B, G, P, 2] input_points) => (float[B, G, P, 2] pred_masks) {
    edges = Constant <value_ints = [1, 2, 3]> ()
    most = ReduceMax (image_embeddings, edges)
    pred_masks = Add (most, input_points)
}"""


class Masks:
    """A model of an image and prompts, and its outputs."""

    main_input_name = "pixel_values"
    config = SimpleNamespace(model_type="sam", vision_config=SimpleNamespace(image_size=8))
    also = ()

    @property
    def model(self) -> Any:
        return self

    def forward(self, pixel_values: Any, input_points: Any = None, input_labels: Any = None) -> None: ...

    def __call__(self, arrays: Arrays, calls: list[int], *, cached: bool = False) -> tuple[Arrays, Arrays]:
        if arrays["pixel_values"].shape[2:] != (8, 8):
            raise ValueError("another size")
        masks = 2 * arrays["pixel_values"].max((1, 2, 3))[:, None, None, None] + arrays["input_points"]
        return {"pred_masks": masks}, {"pred_masks": masks.astype(np.float32)}


@pytest.mark.parametrize(
    ("old", "new", "said"), [("", "", "right"), ("(pixel_values, pixel_values)", "(pixel_values)", "wrong")]
)
def test_masks_of_prompts_come_after_the_image(old: str, new: str, said: str, tmp_path: Path) -> None:
    files = {}
    for name, text in (("encoder", SEES.replace(f"Add {old}", f"Identity {new}") if old else SEES), ("first", MASKS)):
        path = tmp_path / f"{name}.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        files[name] = File(path)
    result = Judge({**files, "step": files["first"]}, cast("Any", Masks()), "rows").run().verdict()
    assert (result["verdict"], len(result["skipped"])) == (said, 3)


def test_a_decoder_of_an_image_is_played_in_steps() -> None:
    points = captions(Size(1, pixels=(12, 16)), 20)
    assert [(point.size.batch, point.calls) for point in points[3:]] == [
        (1, (20,)),
        (1, (1, 2, 3, 4, 5, 6)),
        (2, (4, 5, 6, 7, 8, 9)),
        (1, (15, 16, 17, 18, 19, 20)),
    ]
    assert {point.size.pixels for point in points} == {(12, 16)}
    assert points[1].described("image") == "batch 1, 12x16 pixels, 4 tokens of the decoder"


def test_patches_behind_those_of_an_image_are_padding() -> None:
    vision = SimpleNamespace(num_patches=9, num_channels=3, patch_size=2)
    config = SimpleNamespace(model_type="siglip2", vision_config=vision)
    arrays = further(config, 4, np.random.default_rng(0))
    assert arrays["pixel_values"].shape == (4, 9, 12)
    assert (arrays["pixel_attention_mask"].sum(1) == arrays["spatial_shapes"].prod(1)).all()
    assert set(arrays["pixel_attention_mask"][:, 0]) == {1}
