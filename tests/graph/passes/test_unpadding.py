"""Without padding in linear layers and attention: the same values for real tokens, whatever the padding."""

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.target import Target
from posexport.conversion.convert import convert
from posexport.conversion.export.trace import trace
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.graph.lowering import functions
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.padding.between import _Row
from posexport.graph.passes.pipeline import run
from posexport.run.bundle.read import read
from posexport.sources import builtin
from tests.graph.passes.test_passes import outputs
from tests.in_float64 import is_the_module
from tests.small import TwoLayers, by_attention, in_short, shared
from tests.tolerances import agree

CPU = Target("cpu", 24)
#: real tokens of each row
LENGTHS = (29, 3, 11, 1)
TOKENS = np.arange(max(LENGTHS))
RIGHT = np.asarray(LENGTHS)[:, None] > TOKENS
#: name -> real tokens of each row, and whether padding is left out there
PADDED = {
    "right": (RIGHT, True),
    "left": (RIGHT[:, ::-1], True),
    "inside the row": (np.roll(RIGHT, 2, 1) & RIGHT[:1], True),
    "in the middle": (RIGHT | (TOKENS[-1] == TOKENS), False),
    "a row without tokens": (RIGHT & (np.arange(4) != 2)[:, None], True),
    "little": (np.maximum(RIGHT, np.arange(4)[:, None] > 1), False),
    "none": (np.ones_like(RIGHT), False),
    "one row alone": (RIGHT[1:2], True),
    "no token at all": (np.zeros_like(RIGHT), False),
}


@functools.cache
def _traced(name: str) -> onnx.ModelProto:
    return ir.to_proto(trace(builtin.builtin_source(name, task=None, settings_given=shared(name)), CPU.opset))


def _model(name: str, *, dropped: bool) -> tuple[ir.Model, dict[str, PassResult]]:
    model = ir.from_proto(_traced(name))
    model.ir_version = 10
    found = run(model, Context(CPU), without={} if dropped else {"unpadding": "a test"})
    functions.attach(model, CPU)
    return model, found


def _feeds(model: ir.Model, mask: np.ndarray) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(5).integers(0, 61, mask.shape)
    given = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": ids % 2}
    return {value.name or "": given[value.name or ""] for value in model.graph.inputs}


#: of which kind of attention the pass says why it stays
@pytest.mark.parametrize("name", in_short(by_attention("encoder-"), ("encoder-rope", "encoder-t5").__contains__))
def test_real_tokens_have_the_same_values(name: str) -> None:
    kept, _ = _model(name, dropped=False)
    model, found = _model(name, dropped=True)
    assert found["unpadding"].nodes == 2, found["unpadding"].rejected
    for mask, _drops in PADDED.values():
        (want,), (got,) = outputs(kept, _feeds(kept, mask)), outputs(model, _feeds(model, mask))
        if mask.any():
            agree(got[mask], want[mask], "encoding", np.float32)
        assert not got[~mask].any()


#: the number of kept keys in place of a mask, and a bias by positions
@pytest.mark.parametrize("name", ["encoder-rope", "encoder-t5"])
def test_on_a_device_padding_is_left_out_around_attention(name: str) -> None:
    """Asked for, as it is not measured: no Loop, no branch in a layer, and the same values for real tokens."""
    device = Target("cuda", 24)
    kept, model = ir.from_proto(_traced(name)), ir.from_proto(_traced(name))
    left_out = run(kept, Context(device))["unpadding"]
    assert left_out.rejected == ("not measured on CUDA; use --unpad",)
    assert run(model, Context(device), requested=("unpadding",))["unpadding"].nodes == 2
    for each in (kept, model):
        functions.attach(each, device)
    operators = Counter(node.op_type for node in model.graph)
    assert not operators["If"]
    assert operators["Loop"] == 0
    assert operators["ScatterND"] == 7  # queries, keys and values of two layers, and the output
    for mask, _drops in PADDED.values():
        (want,), (got,) = outputs(kept, _feeds(kept, mask)), outputs(model, _feeds(model, mask))
        if mask.any():
            agree(got[mask], want[mask], "encoding", np.float32)
        assert not got[~mask].any()


@pytest.mark.parametrize("precision", in_short(["fp16", "int4-fp16"], "int4-fp16".__eq__))
def test_half_precision_leaves_padding_out(precision: PrecisionName, tmp_path: Path) -> None:
    settings = tuple(f"{name}={size}" for name, size in {"vocab": 61, "layers": 2, "hidden": 40, "heads": 5}.items())
    options = ConvertOptions(target="cpu", precision=precision, settings=(*settings, "feedforward=72"), lengths=(1, 29))
    done = convert("encoder-t5", tmp_path / "bundle", options)
    assert done.good, done.to_text()
    assert read(tmp_path / "bundle").passes["unpadding"].nodes == 2


def test_asking_where_nothing_is_padded_is_an_error(tmp_path: Path) -> None:
    options = ConvertOptions(target="cuda", unpad=True, settings=("layers=1",), verify=False)
    with pytest.raises(PosexportError, match="--unpad leaves no padding out here: attention has no padding mask"):
        convert("vision-nope", tmp_path / "bundle", options)


def test_the_batch_decides_once_whether_it_pays() -> None:
    model, _ = _model("encoder-rope", dropped=True)
    (decided,) = (node for node in model.graph if node.outputs[0].name == "padding_is_dropped")
    decided.outputs[0].shape = ir.Shape([])
    model.graph.outputs.append(decided.outputs[0])
    for name, (mask, drops) in PADDED.items():
        assert bool(outputs(model, _feeds(model, mask))[1]) == drops, name
    from_first, _ = _model("encoder-relative-key", dropped=True)
    (decided,) = (node for node in from_first.graph if node.outputs[0].name == "padding_is_dropped")
    decided.outputs[0].shape = ir.Shape([])
    from_first.graph.outputs.append(decided.outputs[0])
    assert not outputs(from_first, _feeds(from_first, PADDED["left"][0]))[1]


def test_a_wrong_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `test_real_tokens_have_the_same_values` compares comes from the loop over rows."""
    kept, _ = _model("encoder-rope", dropped=False)
    right = _Row.tokens
    monkeypatch.setattr(_Row, "tokens", lambda row, matrix: row.g.Neg(right(row, matrix)))
    model, _ = _model("encoder-rope", dropped=True)
    mask, _drops = PADDED["right"]
    (want,), (got,) = outputs(kept, _feeds(kept, mask)), outputs(model, _feeds(model, mask))
    with pytest.raises(AssertionError, match="is allowed"):
        agree(got[mask], want[mask], "encoding", np.float32)


class Positions(TwoLayers):
    """Positions as M2M100 reads them: rows of a table by ids [B * T], then [B, T, C]; the sum is normalised."""

    def __init__(self) -> None:
        super().__init__(30)
        self.table = nn.Parameter(torch.randn(LENGTHS[0] + 1, 30))

    def embeddings(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = (attention_mask.cumsum(-1) * attention_mask).view(-1)
        rows = self.table.index_select(0, positions).view(*input_ids.shape, -1)
        return F.layer_norm(self.token(input_ids) + rows, (30,))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask[:, None, None].bool())


def test_rows_of_a_table_are_those_of_real_tokens(tmp_path: Path) -> None:
    module, ids = Positions().eval(), torch.ones(2, 11, dtype=torch.int64)
    inputs = {"input_ids": ids, "attention_mask": ids}
    options = ConvertOptions(target="cpu", lengths=LENGTHS[:1], example_inputs=inputs, threads=1)
    done = convert(module, tmp_path / "bundle", options)
    assert done.good, done.to_text()
    assert read(tmp_path / "bundle").passes["unpadding"].nodes == 2
    is_the_module(tmp_path / "bundle", module, 61, LENGTHS[:1])
