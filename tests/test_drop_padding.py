"""Without padding in linear layers and attention: the same values for real tokens, whatever the padding."""

import numpy as np
import onnx_ir as ir
import pytest

from posexport.export import functions
from posexport.export.trace import trace
from posexport.passes.graph_pass import PassResult
from posexport.passes.pipeline import run
from posexport.sources import builtin
from posexport.targets.target import Target
from tests.small import by_attention, in_short, shared
from tests.test_passes import outputs
from tests.tolerances import agree

CPU = Target("cpu", 24)
#: real tokens of each row
LENGTHS = (29, 3, 11, 1)
PLACES = np.arange(max(LENGTHS))
RIGHT = PLACES < np.asarray(LENGTHS)[:, None]
#: name -> real tokens of each row, and whether padding is left out there
PADDED = {
    "right": (RIGHT, True),
    "left": (RIGHT[:, ::-1], True),
    "inside the row": (np.roll(RIGHT, 2, 1) & RIGHT[:1], False),
    "in the middle": (RIGHT | (PLACES == PLACES[-1]), False),
    "a row without tokens": (RIGHT & (np.arange(4) != 2)[:, None], True),
    "little": (np.maximum(RIGHT, np.arange(4)[:, None] > 1), False),
    "none": (np.ones_like(RIGHT), False),
    "one row alone": (RIGHT[1:2], True),
    "no token at all": (np.zeros_like(RIGHT), False),
}


def _model(name: str, *, dropped: bool, settings: tuple[str, ...] = ()) -> tuple[ir.Model, dict[str, PassResult]]:
    source = builtin.builtin_source(name, task=None, settings_given=shared(name, *settings))
    model = trace(source, CPU.opset)
    model.ir_version = 10
    found = run(model, CPU, without={} if dropped else {"drop-padding": "a test"})
    functions.attach(model, CPU)
    return model, found


@pytest.mark.parametrize("name", in_short(by_attention("encoder-"), ("encoder-rope", "encoder-t5").__contains__))
def test_real_tokens_have_the_same_values(name: str) -> None:
    kept, _ = _model(name, dropped=False)
    model, found = _model(name, dropped=True)
    assert found["drop-padding"].nodes == 2, found["drop-padding"].rejected
    for mask, drops in PADDED.values():
        feeds = {"input_ids": np.random.default_rng(5).integers(0, 61, mask.shape), "attention_mask": mask.astype(np.int64)}
        feeds = {name: feeds[name] for name in (value.name for value in model.graph.inputs)}
        (want,), (got,) = outputs(kept, feeds), outputs(model, feeds)
        agree(got[mask], want[mask], "encoding", np.float32) if mask.any() else None
        assert not got[~mask].any()
