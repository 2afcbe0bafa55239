"""Checkpoints of transformers 4.57.6 give what transformers 4.57.6 computed with them (see ci/golden)."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from posexport.encodings.base import Encoding
from posexport.encodings.nope import NoPE
from posexport.encodings.relative_table import RelativeTable
from posexport.sources.base import Source
from posexport.sources.huggingface.load import load
from posexport.spec import BATCH, PAST, InputSpec

GOLDEN = Path(__file__).parent / "golden"
CHECKPOINTS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
FAMILIES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "albert",
    "megatron-bert",
    "ernie",
    "roberta-prelayernorm",
)
#: families with positions of their own: the encoding's name, the longest input, whether shifting changes nothing
OWN: dict[str, tuple[str, int | None, bool]] = {
    "roformer-formaskedlm": ("rope", 33, True),
    "roformer-forsequenceclassification": ("rope", 33, True),
    "nezha-formaskedlm": ("nezha", 33, True),
    "mpnet-formaskedlm": ("mpnet", 31, False),
    "deberta-formaskedlm": ("deberta", None, True),
    "deberta-forsequenceclassification": ("deberta", None, True),
    "deberta-v2-formaskedlm": ("deberta", None, True),
    "deberta-v2-forsequenceclassification": ("deberta", None, True),
    "esm-formaskedlm": ("rope", None, True),
    "esm-fortokenclassification": ("rope", None, True),
    "distilbert-formaskedlm": ("absolute", 33, False),
    "distilbert-fortokenclassification": ("absolute", 33, False),
}
TYPES = ("absolute", "relative_key", "relative_key_query")
#: whose outputs are those of transformers' code where it differs from the paper
AS_TRANSFORMERS = ("falcon-bfloat16-forcausallm",)
#: of an output's scale; what is left below it is float32 rounding, of the run and of the stored numbers
BOUND = 1e-5


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At these sizes a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def expected(name: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / name / "expected.safetensors")


def run(source: Source, name: str, point: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    stored = expected(name)
    batch = len(next(value for key, value in stored.items() if key.startswith(f"{point}.")))
    # of the others, which it has not, all but the ids may be left out
    given = {spec.name: empty(spec, batch) for spec in source.inputs if spec.role == "cache"}
    for spec in source.inputs:
        if f"{point}.{spec.name}" in stored:
            given[spec.name] = stored[f"{point}.{spec.name}"]
    given = {key: value.to(dtype if value.is_floating_point() else torch.int64) for key, value in given.items()}
    with torch.inference_mode():
        outputs = source.module.to(dtype)(**given)
    return {spec.name: output for spec, output in zip(source.outputs, outputs, strict=True)}


def empty(spec: InputSpec, batch: int) -> torch.Tensor:
    """The cache of no tokens."""
    sizes = {BATCH: batch, PAST: 0}
    return torch.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes])


def errors(source: Source, name: str, dtype: torch.dtype) -> dict[str, float]:
    """Of every stored point and output that the source has, the largest difference over the scale."""
    stored = expected(name)
    found = {}
    for point in sorted({key.split(".")[0] for key in stored}):
        for output, value in run(source, name, point, dtype).items():
            wanted = stored.get(f"{point}.{output}")
            if wanted is not None:
                assert value.shape == wanted.shape
                if name.startswith("deberta"):
                    # padded queries attend to all tokens there and to the real ones here, also where a classifier
                    # reads its answer at one
                    mask = stored[f"{point}.attention_mask"]
                    real = mask[..., None] if value.dim() == 3 else mask[:, :1]
                    value, wanted = value * real, wanted * real
                mask = stored.get(f"{point}.attention_mask")
                if mask is not None and value.shape[:2] == mask.shape and not wanted[mask == 0].any():
                    # stored as zero: padded tokens attend to others there than here, by design
                    value = value * mask.reshape(*mask.shape, *[1] * (value.dim() - 2))
                found[f"{point}.{output}"] = float((value - wanted).abs().max() / wanted.abs().max())
    return found


def points(name: str, output: str) -> set[str]:
    return {key for key in expected(name) if key.endswith(f".{output}")}


def test_every_family_and_position_type_is_there() -> None:
    assert {f"{family}-{kind}" for family in FAMILIES for kind in TYPES} <= set(CHECKPOINTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_hidden_states(name: str, dtype: torch.dtype) -> None:
    # padded tokens too: they attend to the same tokens there and here
    source = load(GOLDEN / name, task="features", allow_pickle=False, as_transformers=name in AS_TRANSFORMERS)
    found = errors(source, name, dtype)
    assert set(found) == set().union(*(points(name, spec.name) for spec in source.outputs))
    assert points(name, "last_hidden_state")
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_task_that_the_checkpoint_names(name: str, dtype: torch.dtype) -> None:
    source = load(GOLDEN / name, task=None, allow_pickle=False, as_transformers=name in AS_TRANSFORMERS)
    found = errors(source, name, dtype)
    assert set(found) == set().union(*(points(name, spec.name) for spec in source.outputs))
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_positions_matter(name: str) -> None:
    """A definition that lost its positions is far off, so that the agreement above says something."""
    source = load(GOLDEN / name, task="features", allow_pickle=False, as_transformers=name in AS_TRANSFORMERS)
    for module in list(source.module.modules()):
        for child, value in list(module.named_children()):
            if isinstance(value, Encoding):
                setattr(module, child, NoPE())
    found = errors(source, name, torch.float64)
    assert max(found.values()) > 0.05, found


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_source_says(family: str) -> None:
    after_padding = family in ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm")
    for kind in TYPES:
        source = load(GOLDEN / f"{family}-{kind}", task=None, allow_pickle=False)
        limit = 31 if after_padding and kind == "absolute" else 33
        assert (source.envelope.trained, source.envelope.limit, source.envelope.beyond) == (limit, limit, "error")
        assert source.envelope.boundaries == [limit]
        assert source.encoding is not None
        assert source.encoding.name == kind.replace("_", "-")
        assert source.shift_invariant == (kind != "absolute")
        assert source.reads_first_token == (source.task == "sequence-classification")
        assert source.inputs[0].padding == (1 if after_padding else 0)
        assert ("token_type_ids" in [spec.name for spec in source.inputs]) == (
            family not in ("roberta", "xlm-roberta", "camembert")
        )
        assert not source.module.training
        assert {parameter.dtype for parameter in source.module.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", OWN)
def test_what_the_source_says_of_positions_of_its_own(name: str) -> None:
    encoding, limit, shift_invariant = OWN[name]
    source = load(GOLDEN / name, task=None, allow_pickle=False, as_transformers=name in AS_TRANSFORMERS)
    assert (source.envelope.limit, source.envelope.beyond) == (limit, "error")
    assert source.envelope.trained == limit
    assert limit is None or max(source.envelope.boundaries) == limit
    assert source.encoding is not None
    assert source.encoding.name == encoding
    assert source.shift_invariant == shift_invariant


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_has_its_own_table(family: str) -> None:
    source = load(GOLDEN / f"{family}-relative_key", task="features", allow_pickle=False)
    tables = [module.table for module in source.module.modules() if isinstance(module, RelativeTable)]
    assert len({id(table) for table in tables}) == 2
    assert not torch.equal(tables[0], tables[-1])


def test_mask_tokens_are_counted_among_real_tokens() -> None:
    """Where transformers 4.57.6 counts padding too (see ci/golden/make.py), the row alone is the truth."""
    module = load(GOLDEN / "esm-formaskedlm", task="features", allow_pickle=False).module.double()
    alone = torch.tensor([[25, 9, 7, 11, 7, 15]])
    padded = torch.nn.functional.pad(alone, (0, 5), value=7)
    with torch.inference_mode():
        wanted = module(input_ids=alone, attention_mask=torch.ones_like(alone))[0]
        got = module(input_ids=padded, attention_mask=(torch.arange(11) < 6).long()[None])[0][:, :6]
        nothing_left = module(input_ids=torch.tensor([[7, 7]]), attention_mask=torch.ones(1, 2))[0]
    assert torch.allclose(got, wanted, rtol=0, atol=1e-12)
    assert torch.isfinite(nothing_left).all()
