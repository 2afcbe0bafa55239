"""Graphs for CUDA on ONNX Runtime's real CUDA provider without a GPU (``ci/lab/cuda-dry``).

First that the dry run chooses what ONNX Runtime's sources say of attention, then what graphs of ours do in it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "ci" / "lab" / "cuda_dry"
sys.path.insert(0, str(FOLDER))
import cases  # noqa: E402  # the command of ci/
import libraries  # noqa: E402
import run  # noqa: E402
import suite  # noqa: E402
from record import Call  # noqa: E402
from worker import Size  # noqa: E402

sys.path.remove(str(FOLDER))

pytestmark = pytest.mark.skipif(libraries.missing() is not None, reason=libraries.missing() or "")
#: attention kernel by (operator, type, compute capability, new tokens, past tokens); its source is ONNX Runtime's code
KNOWN = [
    ("plain", "float16", 80, 128, 0, "flash"),
    ("plain", "float16", 90, 128, 0, "cudnn"),
    ("plain", "float16", 75, 128, 0, "tensorrt"),
    ("plain", "float", 80, 128, 0, "unfused"),  # others from 256 tokens on
    ("plain", "float", 80, 513, 0, "memory-efficient"),
    ("biased", "float16", 80, 136, 0, "memory-efficient"),
    ("biased", "float16", 80, 132, 0, "unfused"),  # no multiple of 8
    ("biased", "float", 80, 272, 0, "memory-efficient"),
    ("biased", "float", 80, 264, 0, "unfused"),  # no multiple of 16
    ("grouped", "float16", 80, 128, 0, "flash"),
    ("grouped", "bfloat16", 80, 1, 4095, "flash, split"),
    ("grouped", "float16", 75, 128, 0, "memory-efficient"),
    ("grouped", "float", 80, 128, 0, "on the CPU"),  # there is no such kernel
    ("counted", "float16", 80, 513, 0, "flash, split"),
    ("counted", "bfloat16", 90, 513, 0, "flash, split"),
    ("counted", "float", 80, 513, 0, "memory-efficient"),
]
#: of these, run with every change
SHORT = ("plain float16 80", "biased float16 80")


def attention(kind: str, dtype: str, new: int, past: int) -> onnx.ModelProto:
    """One operator of 8 heads of 64 channels."""
    kinds = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}

    def port(name: str, *shape: int, of: int = kinds[dtype]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, of, shape)

    inputs, outputs = [port("q", 1, new, 512)], [port("o", 1, new, 512)]
    if kind == "grouped":
        inputs += [*(port(n, 1, new, 128) for n in "kv"), *(port(f"p{n}", 1, 2, past, 64) for n in "kv")]
        inputs += [port("last", 1, of=TensorProto.INT32), port("total", 1, of=TensorProto.INT32)]
        outputs += [port(f"n{n}", 1, 2, new + past, 64) for n in "kv"]
        operator, sizes = "GroupQueryAttention", {"num_heads": 8, "kv_num_heads": 2}
        names = [each.name for each in inputs]
    elif kind == "counted":
        inputs += [*(port(n, 1, new, 512) for n in "kv"), port("counts", 1, of=TensorProto.INT64)]
        operator, sizes = "Attention", {"q_num_heads": 8, "kv_num_heads": 8}
        names = ["q", "k", "v", "", "", "", "counts"]
    else:
        inputs += [port(n, 1, new, 512) for n in "kv"] + ([port("bias", 1, 1, new, new)] if kind == "biased" else [])
        operator, sizes = "MultiHeadAttention", {"num_heads": 8}
        names = ["q", "k", "v", *(["", "", "bias"] if kind == "biased" else [])]
    domain = "" if operator == "Attention" else "com.microsoft"
    node = helper.make_node(operator, names, [each.name for each in outputs], domain=domain, **sizes)
    graph = helper.make_graph([node], kind, inputs, outputs)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def known(rows: list[tuple]) -> list:
    marks = [() if " ".join(map(str, row[:3])) in SHORT else pytest.mark.all for row in rows]
    return [pytest.param(*row, marks=mark, id="-".join(map(str, row))) for row, mark in zip(rows, marks, strict=True)]


@pytest.mark.parametrize(("kind", "dtype", "card", "new", "past", "kernel"), known(KNOWN))
def test_attention_is_what_onnxruntime_s_sources_choose(kind, dtype, card, new, past, kernel, tmp_path):
    onnx.save(attention(kind, dtype, new, past), tmp_path / "model.onnx")
    values = {"last": new + past - 1, "total": new + past, "counts": new}
    record = run.dry_run_file(tmp_path / "model.onnx", card, values)
    assert record.attention == {kernel: 1}


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Call]]:
    """A built-in model for CUDA in fp16, two layers, on a card."""

    def records(name: str, card: int, calls: dict[str, Size], captured: tuple[str, ...] = (), **options: str):
        bundle = tmp_path_factory.mktemp("dry") / "bundle"
        settings = ("layers=2", "hidden=128", "heads=2", "feedforward=64", "vocab=61")
        wanted = {"precision": "fp16", **options}
        convert(name, bundle, ConvertOptions(settings=settings, target="cuda", verify=False, **wanted))
        return run.dry_run(bundle, card, calls, captured)["model.onnx"]

    return records


@pytest.mark.parametrize(
    ("name", "kernels"), [("encoder-t5", {"memory-efficient"}), ("encoder-nope", {"flash", "flash, split"})]
)
def test_an_encoder_is_fused_at_any_length_without_copies_and_captured(dry, name, kernels):
    """A bias is filled up to a multiple; a mask is the number of keys that it keeps."""
    records = dry(name, 80, {f"at {n}": Size(length=n) for n in (17, 128, 513)}, ("at 128",))
    for record in records.values():
        assert (record.to_host, record.to_device, record.waits, record.on_cpu) == (0, 0, 0, {})
        assert record.attention.keys() <= kernels
    assert records["at 128"].cuda_graph == "captured"


@pytest.mark.parametrize("encoding", ["mpnet", pytest.param("alibi", marks=pytest.mark.all)])
def test_a_bias_and_a_static_cache_are_fused_and_a_step_is_captured(dry, encoding):
    """Positions that may be given are guarded on the device."""
    calls = {"prompt": Size(length=113, capacity=256), "step": Size(length=1, past=112, capacity=256)}
    records = dry(f"decoder-{encoding}", 80, calls, ("step",), cache="static")
    assert {name: record.attention for name, record in records.items()} == {
        name: {"memory-efficient": 2} for name in calls
    }
    assert {(record.to_host, record.to_device, record.waits) for record in records.values()} == {(0, 0, 0)}
    assert records["step"].cuda_graph == "captured"


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("decoder-rope", ({"flash", "flash, split"}, {"cudnn"})),
        ("decoder-alibi", ({"memory-efficient"}, {"cudnn"})),
        ("decoder-relative-key", ({"memory-efficient"}, {"cudnn"})),
    ],
)
@pytest.mark.parametrize("card", cases.CARDS)
def test_every_call_of_a_growing_cache_is_fused(dry, name, kernels, card):
    calls = {"prompt": Size(length=129), "step": Size(length=1, past=128), "chunk": Size(length=8, past=121)}
    records = dry(name, card, calls)
    assert set().union(*(record.attention for record in records.values())) <= kernels[card == 90]


def test_a_static_cache_is_attended_to_without_a_bias(dry):
    """The prompt and a step; the one copy to the host, once a call, says that causal order suffices."""
    calls = {"prompt": Size(length=128, capacity=256), "step": Size(length=1, past=128, capacity=256)}
    records = dry("decoder-nope", 80, calls, cache="static")
    assert {name: record.attention for name, record in records.items()} == {"prompt": {"flash": 2}, "step": {"xqa": 2}}
    assert {record.to_host for record in records.values()} == {1}


@pytest.mark.all
@pytest.mark.parametrize(
    "encoding", ["nope", "rope", "relative-key", "alibi", "kerple", "fire", "deberta", "transformer-xl"]
)
@pytest.mark.parametrize("card", cases.CARDS)
def test_no_encoder_copies_anything(dry, encoding, card):
    """Of several rows neither: products of as many matrices in both factors."""
    calls = {"at 128": Size(length=128), "rows": Size(length=128, batch=3)}
    records = dry(f"encoder-{encoding}", card, calls, ("at 128",))
    for record in records.values():
        assert (record.to_host, record.to_device, record.waits, record.on_cpu) == (0, 0, 0, {})
    assert records["at 128"].cuda_graph == "captured"


@pytest.mark.all
@pytest.mark.parametrize(
    ("encoding", "lowering"),
    [
        *((each, "auto") for each in ("relative-key-query", "deberta", "shaw-kv", "cope", "fire")),
        *((each, "filled-slots") for each in ("nope", "rope", "learned", "absolute")),
    ],
)
def test_steps_behind_a_static_cache_copy_nothing_and_are_captured(dry, encoding, lowering):
    calls = {"step": Size(length=1, past=120, capacity=256), "rows": Size(length=1, past=120, capacity=256, batch=3)}
    records = dry(f"decoder-{encoding}", 80, calls, ("step",), cache="static", lowering=lowering)
    assert {(record.to_host, record.to_device, record.waits) for record in records.values()} == {(0, 0, 0)}
    assert records["step"].cuda_graph == "captured"
    kernel = "unfused (nodes)" if encoding == "shaw-kv" else "memory-efficient"
    assert {kind for record in records.values() for kind in record.attention} == {kernel}


@pytest.mark.parametrize(
    ("name", "copies", "graph"),
    [
        *(
            pytest.param(name, 0, "captured", marks=pytest.mark.all)
            for name in ("vision-beit", "vision-vit-interpolated", "vision-swin", "vision-swinv2")
        ),
        # how many tokens attend to all others is a value that the rest of the graph has as a size
        pytest.param("tests/golden/longformer-formaskedlm", 1, "cannot", marks=pytest.mark.all),
    ],
)
def test_images_and_windows_copy_nothing(name, copies, graph, tmp_path):
    """Interpolated tables, grids and shifted windows; Longformer copies one number to the host, outside its layers."""
    convert(name, tmp_path / "x", ConvertOptions(target="cuda", precision="fp16", verify=False))
    record = run.dry_run(tmp_path / "x", 80, {"default": Size()}, ("default",))["model.onnx"]["default"]
    assert (record.to_host, record.to_device, record.waits, record.on_cpu) == (copies, 0, copies, {})
    assert graph in (record.cuda_graph or "")


def test_recorded_results_have_both_cards_and_no_case_that_is_gone():
    rows = msgspec.json.decode((ROOT / suite.RESULTS).read_bytes(), type=suite.Document).rows
    keys = {case.key for case in cases.cases()}
    assert {row.case for row in rows} <= keys
    assert {row.card for row in rows} == set(cases.CARDS.values())
    encoders = {key for key in keys if key.startswith("encoder-") and key.endswith(" fp16") and "decoder" not in key}
    assert encoders <= {row.case for row in rows}, "run ci/lab/cuda-dry"


def test_a_run_goes_on_where_it_was_ended(tmp_path, monkeypatch, capsys):
    asked = []

    def of_case(case: cases.Case, cards: list[int]) -> list[suite.Row]:
        asked.append(case.key)
        return [suite.Row(case=case.key, card=cases.CARDS[card]) for card in cards]

    monkeypatch.setattr(suite, "of_case", of_case)
    path = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["cuda-dry", "-o", str(path), "--only", "encoder-t5 fp16"])
    assert suite.main() == 0
    monkeypatch.setattr(sys, "argv", ["cuda-dry", "-o", str(path), "--only", "encoder-t5 *16"])
    assert suite.main() == 0
    assert asked == ["encoder-t5 fp16", "encoder-t5 bf16", "encoder-t5 int4-fp16"]
    assert len(json.loads(path.read_bytes())["rows"]) == 3 * len(cases.CARDS)
    capsys.readouterr()
