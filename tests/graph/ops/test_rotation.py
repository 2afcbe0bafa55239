"""Rotations as nodes: every kind by every lowering against the oracle, refusals, and what stands in exported graphs."""

from itertools import product, starmap

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from posexport.base.targets.target import Target
from posexport.graph.lowering.lowering import function
from posexport.graph.lowering.rotation import LOWERINGS
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.rotation import LAYOUTS, Layout, RotationSpec, oracle, rotate
from tests.tolerances import agree

HEADS, LENGTH = 5, 7
#: head size and pairs: all channels, an odd rest, and operators with sizes that are no multiple of four
SIZES = {False: [(20, 10), (6, 3)], True: [(9, 2), (20, 3)]}
SPECS = {spec.name: spec for spec in starmap(RotationSpec, product(LAYOUTS, *[(False, True)] * 4))}
BY_NAME = {lowering.name: lowering for lowering in LOWERINGS}
TYPES = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}


def model(name: str, kind: RotationSpec, size: int, pairs: int, target: Target, dtype: str = "float32") -> bytes:
    """A graph of one node and its function."""
    turning = [pairs, pairs] if kind.layout == "half" else [2 * pairs]
    every = {
        "heads": HEADS,
        "dim": 2 * pairs,
        "parts": [*turning, size - 2 * pairs],
        "split_heads": [0, 0, HEADS, -1],
    }
    lowering = BY_NAME[name]
    body = ir.serde.serialize_function(function(lowering, kind, target).function)
    attributes = {name: every[name] for name in body.attribute}
    heads = ["B", "T", HEADS * size] if kind.packed else ["B", HEADS, "T", size]
    angles = ["R", "T", pairs] if kind.squeezed else ["R", 1, "T", pairs]
    axes = {"x": heads} | dict.fromkeys(("cos", "sin"), angles)
    made = {"x": TYPES[dtype], "cos": TYPES["float32"], "sin": TYPES["float32"]}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(kind.name, kind.inputs, kind.outputs, domain=DOMAIN, **attributes)],
        "one",
        [onnx.helper.make_tensor_value_info(n, made[n], axes[n]) for n in kind.inputs],
        [onnx.helper.make_tensor_value_info("rotated", TYPES[dtype], axes["x"])],
    )
    domains = {DOMAIN: 1, **{each.domain: each.version for each in body.opset_import}}
    found = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid(*each) for each in domains.items()],
        functions=[body],
        ir_version=10,
    )
    onnx.checker.check_model(found)
    text: bytes = found.SerializeToString()
    return text


def drawn(
    kind: RotationSpec, batch: int, length: int, size: int, pairs: int, dtype: str = "float32"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size + length)
    x = rng.standard_normal((batch, HEADS, length, size)).astype(dtype)
    # another angle for every row, token and pair, and a factor: what nobody could mix up unseen
    angle = rng.uniform(-9, 9, (1 if kind.shared else batch, 1, length, pairs))
    return x, (1.3 * np.cos(angle)).astype(np.float32), (1.3 * np.sin(angle)).astype(np.float32)


def turned(text: bytes, kind: RotationSpec, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """What the graph makes of x [B, H, T, D]."""
    if kind.squeezed:
        cos, sin = cos[:, 0], sin[:, 0]
    if not kind.packed:
        return run(text, x=x, cos=cos, sin=sin)
    batch, heads, length, size = x.shape
    got = run(text, x=x.transpose(0, 2, 1, 3).reshape(batch, length, -1), cos=cos, sin=sin)
    return got.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)


def run(text: bytes, **feeds: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    answer: np.ndarray = session.run(None, feeds)[0]
    return answer


def off(got: np.ndarray, want: np.ndarray, dtype: str) -> float:
    """The largest error in units of the type's last place."""
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max() / np.finfo(dtype).eps)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_torch_turns_as_the_oracle(layout: Layout, partial: bool, dtype: torch.dtype) -> None:
    kind = RotationSpec(layout, partial)
    for size, pairs in SIZES[partial]:
        x, cos, sin = drawn(kind, 2, LENGTH, size, pairs)
        given = torch.from_numpy(x).to(dtype)
        got = rotate(given, torch.from_numpy(cos), torch.from_numpy(sin), layout)
        want = oracle(given.double().numpy(), cos.astype(np.float64), sin.astype(np.float64), layout=layout)
        assert got.dtype == dtype
        # float64 is turned by float32 cosines here: what counts is their type
        agree(got, want, "one rounding", torch.float32 if dtype == torch.float64 else dtype)
        assert torch.equal(got[..., 2 * pairs :], given[..., 2 * pairs :])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("lowering", BY_NAME)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_lowering_turns_as_the_oracle(name: str, lowering: str, dtype: str) -> None:
    kind = SPECS[name]
    for size, pairs in SIZES[kind.partial]:
        text = model(lowering, kind, size, pairs, Target("cpu", 23), dtype)
        for batch, length in ((1, 1), (3, 1), (1, LENGTH), (3, LENGTH), (2, 130)):
            x, cos, sin = drawn(kind, batch, length, size, pairs, dtype)
            want = oracle(x.astype(np.float64), cos.astype(np.float64), sin.astype(np.float64), layout=kind.layout)
            got = turned(text, kind, x, cos, sin)
            assert got.dtype == x.dtype
            # one rounding of the answer: nothing is turned in half precision
            assert off(got, want, dtype) <= (0.5 if dtype == "float16" else 2), f"{batch=} {length=} {size=}"
            assert np.array_equal(got[..., 2 * pairs :], x[..., 2 * pairs :])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("flat", [False, True])
def test_the_formula_fits_every_target(name: str, flat: bool) -> None:
    kind, target = SPECS[name], Target("portable", 18, flat)
    size, pairs = SIZES[kind.partial][0]
    x, cos, sin = drawn(kind, 2, LENGTH, size, pairs)
    assert BY_NAME["turned"].refusal(kind, target) is None
    got = turned(model("turned", kind, size, pairs, target), kind, x, cos, sin)
    wide = [each.astype(np.float64) for each in (x, cos, sin)]
    assert off(got, oracle(*wide, layout=kind.layout), "float32") <= 2


@pytest.mark.parametrize(
    ("lowering", "target", "reason"),
    [
        ("rotary", Target("portable", 22), "needs opset 23, the graph has 22"),
        ("rotary", Target("cpu", 18), "needs opset 23, the graph has 18"),
        ("rotary", Target("portable", 23, inline=True), "without functions"),
        ("ms-rotary", Target("portable", 23), "--target cpu or cuda"),
        ("rotary", Target("portable", 23), None),
        ("rotary", Target("cuda", 24), None),
        ("ms-rotary", Target("cpu", 18), None),
        ("turned", Target("portable", 18), None),
    ],
)
def test_refusals(lowering: str, target: Target, reason: str | None) -> None:
    for kind in SPECS.values():
        said = BY_NAME[lowering].refusal(kind, target)
        assert (said is None) == (reason is None)
        assert reason is None or reason in str(said)


def test_refused_operators_do_not_load() -> None:
    """The opset that is asked for is the smallest that has the operator."""
    kind = RotationSpec("half")
    with pytest.raises(onnx.checker.ValidationError, match="RotaryEmbedding"):
        model("rotary", kind, 20, 10, Target("portable", 22))


def test_names_are_distinct() -> None:
    assert len(SPECS) == 32
