"""posexport optimize: files of other tools, without their source and without PyTorch."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import posexport
from posexport.cli import group
from posexport.graph.passes.recognise.attention_by_hand import AttentionByHand
from posexport.inspect.bench.measurement import SamplingBudget

#: by optimum and TorchScript: a BERT, and a Llama with a KV cache and grouped heads
FOREIGN = Path(__file__).parents[1] / "foreign"


def interface(path: Path) -> tuple[list[bytes], list[bytes]]:
    graph = onnx.load(str(path)).graph
    inputs, outputs = ([value.SerializeToString() for value in values] for values in (graph.input, graph.output))
    return inputs, outputs


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[posexport.Optimized, Path]:
    output = tmp_path_factory.mktemp("optimised") / "llama.onnx"
    return posexport.optimize(FOREIGN / "llama" / "model.onnx", output), output


def test_a_decoder_of_another_tool_gets_operators_and_keeps_its_interface(llama) -> None:
    done, output = llama
    assert not done.refused
    assert {name: done.passes[name].places for name in ("rotary", "recognised-attention", "grouped-heads")} == {
        "rotary": 4,
        "recognised-attention": 2,
        "grouped-heads": 2,
    }
    assert done.passes["rms-norm"].places == 5
    assert done.lowerings == {"rotary": 4, "attention": 2}
    assert interface(output) == interface(FOREIGN / "llama" / "model.onnx")
    assert done.nodes[1] < done.nodes[0] / 3
    assert done.proof[0].startswith("the same outputs as the file in ")
    assert "behind a cache" in done.proof[0]


def test_what_is_left_has_a_reason(llama) -> None:
    done, _ = llama
    assert done.passes["mask-structure"].left == ("its mask over pairs of tokens is not causality and padding alone",)
    assert done.left_out["unpadding"] == "outputs at padding become zeros"


@pytest.mark.parametrize(
    ("file", "precision", "most"),
    [("llama", "fp16", 2e-2), pytest.param("bert", "int8", 0.2, marks=pytest.mark.all)],
)
def test_precisions_keep_the_types_of_inputs_and_outputs(
    tmp_path: Path, file: str, precision: str, most: float
) -> None:
    """Of a KV cache too, which a conversion gives the precision's type."""
    target = "cuda" if precision == "fp16" else "cpu"
    done = posexport.optimize(FOREIGN / file / "model.onnx", tmp_path / "o.onnx", target=target, precision=precision)
    assert not done.refused
    assert interface(tmp_path / "o.onnx") == interface(FOREIGN / file / "model.onnx")
    assert 0 < float(done.proof[-1].split(" by ")[1].split()[0]) < most


def test_a_graph_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(self, model, context):
        weight = next(value for value in model.graph.initializers.values() if len(value.shape) == 2)
        weight.const_value = onnx_ir_tensor(weight.const_value.numpy() / 2)
        return apply(self, model, context)

    from onnx_ir import tensor as onnx_ir_tensor

    apply = AttentionByHand.apply
    monkeypatch.setattr(AttentionByHand, "apply", halved)
    result = CliRunner().invoke(
        group, ["optimize", str(FOREIGN / "bert" / "model.onnx"), "-o", str(tmp_path / "b.onnx")]
    )
    assert result.exit_code == 1
    assert "b.onnx is not written: it could not be proven: its output 'last_hidden_state' differs by" in result.output
    assert not list(tmp_path.iterdir())


def test_bad_input(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes((FOREIGN / "bert" / "model.onnx").read_bytes()[:5000])
    with pytest.raises(posexport.PosexportError, match="damaged"):
        posexport.optimize(damaged, tmp_path / "o.onnx")
    with pytest.raises(posexport.PosexportError, match="already exists; give --force"):
        posexport.optimize(FOREIGN / "bert" / "model.onnx", damaged)
    with pytest.raises(posexport.PosexportError, match="tpu"):
        posexport.optimize(FOREIGN / "bert" / "model.onnx", tmp_path / "o.onnx", target="tpu")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.onnx"]


@pytest.mark.all
def test_times_of_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.inspect.optimize.measured._BUDGET", SamplingBudget(runs=3))
    done = posexport.optimize(FOREIGN / "bert" / "model.onnx", tmp_path / "bert.onnx", bench=True)
    assert [each.call for each in done.times] == ["batch 1, 8 tokens"]  # its table has 64 positions
    assert all(each.before > 0 and each.after > 0 and each.ratio > 0 for each in done.times)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    source = shutil.copy(FOREIGN / "bert" / "model.onnx", tmp_path / "bert.onnx")
    code = (
        "import sys; sys.modules['torch'] = None; import posexport; "
        "done = posexport.optimize(sys.argv[1], sys.argv[2], target='portable'); print(done.refused, done.lowerings)"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "o.onnx")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(" {")
    domains = {node.domain for node in onnx.load(str(tmp_path / "o.onnx")).graph.node}
    assert "com.microsoft" not in domains


def test_weights_are_the_files(llama) -> None:
    """No weight is rounded on the way: those with their name have their bytes."""
    _, output = llama
    before, after = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}
        for path in (FOREIGN / "llama" / "model.onnx", output)
    )
    same = [name for name in before if name in after and before[name].ndim == 2]
    assert same
    assert all(np.array_equal(before[name], after[name]) for name in same)
