"""A user's causal convolutions, LSTM and GRU as decoders with states: any split of a text is the whole of it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import posexport
from posexport.base.spec import State
from posexport.errors import PosexportError
from posexport.modules import kept_layers
from posexport.modules.live_module import module_source
from posexport.modules.states_decoder import by_states
from posexport.modules.with_cache import with_cache
from tests.modules.recurrent_modules import VOCAB, Backwards, Centred, Counting, Recurrent, Started, WaveNet, random
from tests.small import proven
from tests.tolerances import agree

INPUTS = {"input_ids": torch.arange(18).reshape(2, 9) % VOCAB}
KINDS = {"WaveNet": (WaveNet, "portable", "4 Causal, 1 Conv1d"), "Recurrent": (Recurrent, "cpu", "1 LSTM, 1 GRU")}


@pytest.fixture(scope="module", params=list(KINDS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path, str]:
    """A module, its bundle, and the layers that keep states."""
    kind, target, layers = KINDS[request.param]
    module, bundle = random(kind()), tmp_path_factory.mktemp("states") / "bundle"
    done = proven(module, bundle, example_inputs=INPUTS, lengths=[1, 17], threads=1, target=target)
    assert any(f"converted for text-generation: a state between tokens goes through its {layers};" in remark
               for remark in done.remarks)  # fmt: skip
    assert done.manifest is not None
    states = [spec for spec in done.manifest.inputs if spec.role == "state"]
    assert states
    assert all(isinstance(spec.state, State) and spec.state.reset == 0 for spec in states)
    assert {spec.role for spec in done.manifest.inputs} == {"tokens", "mask", "state"}
    return module, bundle, layers


@pytest.mark.all(but=("Recurrent",))
def test_padded_calls_give_the_logits_of_each_row_alone(made: tuple[nn.Module, Path, str]) -> None:
    """Padding before, behind and between the tokens, and calls without tokens of a row."""
    module, bundle, _ = made
    session = posexport.load(bundle)
    rng = np.random.default_rng(3)
    masks = [np.array(rows) for rows in (
        [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1]], [[1], [0], [1]], [[1, 1], [1, 0], [0, 0]],
        [[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]],
    )]  # fmt: skip
    past = {
        spec.name: np.zeros([3, *map(int, spec.axes[1:])], np.float32)
        for spec in session.manifest.inputs
        if spec.role == "state"
    }
    read: list[list[int]] = [[], [], []]
    logits: list[list[np.ndarray]] = [[], [], []]
    seen = np.zeros((3, 0), np.int64)
    for new in masks:
        ids = rng.integers(0, VOCAB, new.shape)
        seen = np.concatenate((seen, new), 1)
        outputs = session.run({"input_ids": ids, "attention_mask": seen, **past})
        past = {name: outputs[name.replace("past_", "present_", 1)] for name in past}
        for row in range(3):
            kept = new[row] != 0
            read[row] += ids[row, kept].tolist()
            logits[row] += [*outputs["logits"][row, kept]]
    for tokens, got in zip(read, logits, strict=True):
        with torch.no_grad():
            right = module.double()(torch.tensor([tokens]))[0]
        agree(np.stack(got), right, "model in float32", "float32")
    module.float()


@pytest.mark.all(but=("Recurrent",))
def test_greedy_generation_is_the_modules(made: tuple[nn.Module, Path, str]) -> None:
    module, bundle, _ = made
    rows = [[5, 17, 8], [11]]
    completions = posexport.load(bundle).generate(rows, max_new_tokens=7).completions
    for row, completion in zip(rows, completions, strict=True):
        tokens = list(row)
        with torch.no_grad():
            for _ in range(7):
                tokens.append(int(module(torch.tensor([tokens]))[0, -1].argmax()))
        assert completion.tokens == tokens[len(row) :]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Backwards, "its GRU reads backwards"),
        (Started, "its GRU starts from another state than zeros"),
        (Centred, "with states its logits are others than without, so something beside those layers looks at other"),
        (Counting, "with states its logits are others than without, so something beside those layers looks at other"),
    ],
)
def test_other_modules_have_no_states(kind: type[nn.Module], said: str) -> None:
    source = module_source(random(kind()), INPUTS)
    with pytest.raises(PosexportError, match=said):
        by_states(source, source.module)


@pytest.mark.parametrize("kind", [WaveNet, Recurrent])
def test_a_state_that_padding_changes_is_refused(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is traced: rows that are padded on the left are compared with each row alone."""
    source = module_source(random(kind()), INPUTS)
    keeping = kept_layers.keeping
    monkeypatch.setattr(
        "posexport.modules.states_decoder.keeping", lambda states, mask: keeping(states, torch.ones_like(mask))
    )
    with pytest.raises(PosexportError, match="padding on the left changes its logits"):
        by_states(source, source.module)


def test_features_are_asked_for_without_states() -> None:
    source = module_source(random(WaveNet()), INPUTS)
    assert with_cache(source, "features") is source
    decoder = with_cache(source, None)
    assert decoder.task == "text-generation"
    assert msgspec.structs.asdict(decoder)["encoding"] is None


@pytest.mark.all
@pytest.mark.parametrize(
    ("kind", "target", "precision"),
    [(WaveNet, "portable", "int4"), (WaveNet, "cpu", "int8"), (Recurrent, "portable", "fp16")],
)
def test_other_precisions_keep_states_in_float32(
    kind: type[nn.Module], target: str, precision: str, tmp_path: Path
) -> None:
    options = {"target": target, "precision": precision, "lengths": [1, 17], "threads": 1}
    done = proven(random(kind()), tmp_path / "bundle", example_inputs=INPUTS, **options)
    assert {spec.dtype for spec in done.manifest.inputs if spec.role == "state"} == {"float32"}
