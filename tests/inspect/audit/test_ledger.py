"""Ledgers of small graphs: what exporters do to weights is known, what they may not do is found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

import posexport
from posexport.errors import PosexportError
from posexport.inspect.audit.finding import Findings

Array = NDArray[Any]
RANDOM = np.random.default_rng(11)


def weight(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32) * np.float32(0.3)


#: a model of two layers and a pooler; rows and columns have different scales, as trained weights do
CHECKPOINT = {
    "embed.weight": weight(211, 48) * np.linspace(0.2, 3, 211, dtype=np.float32)[:, None],
    **{f"layers.{i}.{name}.weight": weight(48, 48) for i in (0, 1) for name in "qkvo"},
    **{f"layers.{i}.{name}.bias": weight(48) for i in (0, 1) for name in "qkvo"},
    **{f"layers.{i}.up.weight": weight(160, 48) for i in (0, 1)},
    **{f"layers.{i}.norm.weight": 1 + weight(48) / 10 for i in (0, 1)},
    "layers.0.norm.bias": np.zeros(48, np.float32),
    "pooler.dense.weight": weight(48, 48),
    "pooler.dense.bias": weight(48),
}
Q, K, V = (CHECKPOINT[f"layers.1.{name}.weight"] for name in "qkv")
UP, EMBED = CHECKPOINT["layers.1.up.weight"], CHECKPOINT["embed.weight"]
#: what most cases leave as it is
PLAIN = {name: array for name, array in CHECKPOINT.items() if not name.startswith(("pooler", "layers.0.norm.bias"))}


def without(*names: str) -> dict[str, Array]:
    return {name: array for name, array in PLAIN.items() if name not in names}


def saved(
    folder: Path,
    weights: dict[str, Array],
    nodes: Sequence[onnx.NodeProto] = (),
    output: str = "last_hidden_state",
) -> Path:
    """A graph with ``weights`` whose nodes do not matter, except where a quantized one is read."""
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 48])
    y = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["B", 48])
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], [output], name="abs"), *nodes], "g", [x], [y], initializers
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    folder.mkdir(exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_file(CHECKPOINT, folder / "model.safetensors")
    return folder


def audited(path: Path, checkpoint: Path) -> Findings:
    return posexport.audit(path, select=["PX6"], ignore=["PX604"], against=checkpoint)


def worse(findings: Findings) -> list[str]:
    """All but the note that the pooler is left out."""
    return [f"{finding.code} {finding.message}" for finding in findings if finding.severity != "note"]


def int8(array: Array, axis: int | None = None) -> tuple[Array, Array]:
    scale = np.abs(array).max(axis=axis, keepdims=axis is not None) / 127
    return np.clip(np.rint(array / scale), -127, 127).astype(np.int8), np.asarray(scale, np.float32)


def as_dequantized() -> tuple[dict[str, Array], list[onnx.NodeProto]]:
    values, scale = int8(UP)
    node = helper.make_node("DequantizeLinear", ["up8", "scale"], ["up"])
    return without("layers.1.up.weight") | {"up8": values, "scale": scale}, [node]


def as_integers() -> tuple[dict[str, Array], list[onnx.NodeProto]]:
    values, scale = int8(UP.T, axis=0)
    node = helper.make_node("MatMulInteger", ["a", "up8", "az"], ["up"])
    return without("layers.1.up.weight") | {"up8": values, "scale": scale}, [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "as", "az"]),
        node,
    ]


def as_blocks() -> tuple[dict[str, Array], list[onnx.NodeProto]]:
    blocks = UP.reshape(160, 3, 16)
    scale = np.abs(blocks).max(axis=2) / 7
    values = (np.clip(np.rint(blocks / scale[..., None]), -8, 7) + 8).astype(np.uint8)
    packed = values[..., 0::2] | values[..., 1::2] << 4
    node = helper.make_node(
        "MatMulNBits", ["x", "up4", "scale"], ["up"], domain="com.microsoft", K=48, N=160, bits=4, block_size=16
    )
    return without("layers.1.up.weight") | {"up4": packed, "scale": scale.reshape(-1).astype(np.float32)}, [node]


def as_rows_of_int8() -> tuple[dict[str, Array], list[onnx.NodeProto]]:
    values, scale = int8(EMBED, axis=1)
    return without("embed.weight") | {"embed8": values, "scale": scale}, [
        helper.make_node("Cast", ["embed8"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "scale"], ["embed"]),
    ]


QKV = ("layers.1.q.weight", "layers.1.k.weight", "layers.1.v.weight")
BIASES = tuple(name.replace("weight", "bias") for name in QKV)
B = [CHECKPOINT[name] for name in BIASES]
KNOWN: dict[str, tuple[dict[str, Array], list[onnx.NodeProto]]] = {
    "as it is": (PLAIN, []),
    "transposed": ({f"val_{i}": array.T.copy() for i, array in enumerate(PLAIN.values())}, []),
    "joined": (without(*QKV, *BIASES) | {"qkv": np.concatenate([Q, K, V]), "b": np.concatenate(B)}, []),
    "joined columns": (without(*QKV) | {"qkv": np.concatenate([Q.T, K.T, V.T], axis=1)}, []),
    "joined along the input": (without(*QKV) | {"qkv": np.concatenate([Q, K, V], axis=1)}, []),
    "split": (without("layers.1.up.weight") | {"a": UP[:80].T.copy(), "b": UP[80:].copy()}, []),
    "scaled": (without("layers.1.q.weight") | {"q": Q / np.float32(np.sqrt(12))}, []),
    "reordered": (without("layers.1.q.weight") | {"q": Q.reshape(4, 6, 2, 48).swapaxes(1, 2).reshape(48, 48)}, []),
    "half": ({name: array.astype(np.float16) for name, array in PLAIN.items()}, []),
    "norm of 1 + w": (without("layers.1.norm.weight") | {"n": CHECKPOINT["layers.1.norm.weight"] + 1}, []),
    "folded norm": (
        without("layers.1.up.weight") | {"up": UP * np.linspace(0.3, 4, 160, dtype=np.float32)[:, None]},
        [],
    ),
    "int8, one scale": as_dequantized(),
    "int8, a scale for each column": as_integers(),
    "int8 rows of a table": as_rows_of_int8(),
    "int4 blocks": as_blocks(),
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_exporters_do_to_weights_is_known(case: str, checkpoint: Path, tmp_path: Path) -> None:
    weights, nodes = KNOWN[case]
    findings = audited(saved(tmp_path, weights, nodes), checkpoint)
    assert worse(findings) == []
    (note,) = findings
    assert (
        note.message
        == "pooler.dense (2 tensors): weights of the checkpoint are not in the graph, in no form that is known"
    )
    (line,) = [known.what for known in findings.recognised if known.kind == "checkpoint"]
    assert line.startswith(f"{len(PLAIN)} of {len(PLAIN) + 2} tensors")


def other(name: str, change: Callable[[Array], Array]) -> dict[str, Array]:
    return PLAIN | {name: change(PLAIN[name]).astype(np.float32)}


WRONG: dict[str, tuple[dict[str, Array], str]] = {
    "a weight": (
        without("layers.1.k.weight"),
        "PX601 layers.1.k.weight [48, 48]: a weight of the checkpoint is not in",
    ),
    "a bias": (without("layers.0.v.bias"), "PX601 layers.0.v.bias [48]"),
    "a layer": (
        {name: array for name, array in PLAIN.items() if "layers.1." not in name},
        "PX601 layers.1 (10 tensors)",
    ),
    "rows": (other("embed.weight", lambda w: w[:128]), "PX601 embed.weight: the graph has 128 of its 211 rows"),
    "random": (PLAIN | {"noise": weight(64, 40)}, "PX602 weight 'noise' [64, 40] is no tensor"),
    "other values": (
        other("layers.0.o.weight", lambda w: weight(*w.shape)),
        "PX603 weight 'layers.0.o.weight' [48, 48]: layers.0.o.weight of the checkpoint has its name",
    ),
    "fine-tuned": (
        other("layers.0.o.weight", lambda w: w + 0.05 * weight(*w.shape)),
        "PX603 weight 'layers.0.o.weight' [48, 48]: layers.0.o.weight of the checkpoint differs from it by",
    ),
    "columns of one head": (
        other("layers.0.o.weight", lambda w: np.concatenate([0 * w[:, :12], w[:, 12:]], axis=1)),
        "PX603 weight 'layers.0.o.weight'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_they_may_not_do_is_found(case: str, checkpoint: Path, tmp_path: Path) -> None:
    weights, said = WRONG[case]
    (message,) = worse(audited(saved(tmp_path, weights), checkpoint))
    assert message.startswith(said)


def test_a_pooler_that_the_graph_returns_is_lost(checkpoint: Path, tmp_path: Path) -> None:
    (finding,) = audited(saved(tmp_path, PLAIN, output="pooler_output"), checkpoint)
    assert (finding.code, finding.severity) == ("PX601", "error")


def test_parts_of_one_model_share_a_ledger_and_variants_do_not(checkpoint: Path, tmp_path: Path) -> None:
    half = {name: array for name, array in PLAIN.items() if "layers.1" in name}
    rest = {name: array for name, array in PLAIN.items() if "layers.1" not in name}
    for name, weights in (("encoder_model", half), ("decoder_model", rest), ("encoder_model_fp16", half)):
        saved(tmp_path, weights).rename(tmp_path / f"{name}.onnx")
    findings = audited(tmp_path, checkpoint)
    assert {finding.file for finding in findings if finding.severity == "error"} == {"encoder_model_fp16.onnx"}


def test_checkpoints_that_are_none(tmp_path: Path) -> None:
    path = saved(tmp_path / "graph", PLAIN)
    for name, content, said in (
        ("absent", None, "no such folder or .safetensors file"),
        ("empty", {}, "has no .safetensors file"),
        ("pickled", {"pytorch_model.bin": b"x"}, "has pytorch_model.bin, a pickle, which audit does not read"),
        ("damaged", {"model.safetensors": b"\xff" * 64}, "is not a whole safetensors file"),
        (
            "cut",
            {"model.safetensors": b"\x39" + bytes(7) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}    '},
            "does not fit bytes 0 to 36",
        ),
    ):
        if content is not None:
            (tmp_path / name).mkdir()
            for file, data in content.items():
                (tmp_path / name / file).write_bytes(data)
        with pytest.raises(PosexportError, match=said):
            audited(path, tmp_path / name)


def test_a_zero_point_that_is_one_off_is_more_than_rounding(checkpoint: Path, tmp_path: Path) -> None:
    weights, _ = as_dequantized()
    node = helper.make_node("DequantizeLinear", ["up8", "scale", "zero"], ["up"])
    path = saved(tmp_path, weights | {"zero": np.array(1, np.int8)}, [node])
    (finding,) = [finding for finding in audited(path, checkpoint) if finding.severity != "note"]
    assert (finding.code, finding.severity) == ("PX603", "warning")
    assert finding.message.startswith("weight 'up8' [160, 48]: layers.1.up.weight of the checkpoint differs from it by")


@dataclass(frozen=True)
class Verdict:
    """What these tests need of a report."""

    passed: bool
    verdict: str


@pytest.mark.parametrize("passed", [True, False])
def test_the_proof_is_one_line(passed: bool, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prove(target: Path, against: str) -> Verdict:
        asked.append((target, against))
        return Verdict(passed, "the verdict")

    monkeypatch.setattr("posexport.conversion.verification.verify", prove)
    path = saved(tmp_path, PLAIN)
    findings = posexport.audit(path, select=["PX6"], against=checkpoint)
    assert asked == [(path, str(checkpoint))]
    assert [finding.message for finding in findings if finding.code == "PX604"] == (
        [] if passed else ["posexport verify: the verdict"]
    )
    assert [known.what for known in findings.recognised if known.kind == "proof"] == ["the verdict"] * passed


def test_without_pytorch_there_is_the_ledger(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.inspect.audit.ledger.proof.find_spec", lambda _: None)
    findings = posexport.audit(saved(tmp_path, PLAIN), select=["PX6"], against=checkpoint)
    assert "needs PyTorch" in findings.skipped["PX604"]
    assert worse(findings) == []


def test_a_batch_norm_in_its_convolution_is_a_note(tmp_path: Path) -> None:
    scale, bias, mean, variance = weight(30) + 1, weight(30), weight(30), np.square(weight(30)) + 1
    convolution = weight(30, 12, 3)
    norm = {"weight": scale, "bias": bias, "running_mean": mean, "running_var": variance}
    stored = {"conv.weight": convolution, **{f"norm.{name}": array for name, array in norm.items()}}
    (tmp_path / "checkpoint").mkdir()
    save_file(stored, tmp_path / "checkpoint" / "model.safetensors")
    factor = (scale / np.sqrt(variance)).astype(np.float32)
    folded = {"w": convolution * factor[:, None, None], "b": bias - mean * factor}
    (finding,) = audited(saved(tmp_path / "graph", folded), tmp_path / "checkpoint")
    assert (finding.code, finding.severity) == ("PX601", "note")
    findings = audited(saved(tmp_path / "bare", {"w": convolution}), tmp_path / "checkpoint")
    assert [finding.severity for finding in findings] == ["error"]
