"""64 greedy steps of decoders in which every step is certain and no loop is entered: the tokens must be equal.

Most random decoders soon repeat themselves, or come to a step at which two tokens are almost equally likely, where two
right programs may part. The seeds below were searched for; what they promise is asserted.
"""

from pathlib import Path

import pytest
import torch

import posexport
from posexport.proof.criterion import measure, tolerance
from posexport.proof.invariants import rollout as steps
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.subjects.runner import Runner
from posexport.run.cache import decoder_interface
from posexport.sources import builtin
from posexport.sources.source import Source
from tests.parity_models import exported
from tests.small import in_short

SIZES = ("layers=2", "hidden=60", "heads=5", "feedforward=64", "vocab=211", "tied=false")
#: built-in decoder, its settings, the seed of its weights
SEEDS = [
    ("rope", (), 0),
    ("rope-dynamic", ("max_positions=40",), 8),  # the steps cross the length from which on the base grows
    ("absolute", ("max_positions=96",), 1),
    ("t5", (), 7),
    ("relative-key", ("max_positions=96",), 18),
]


def decoder(name: str, settings: tuple[str, ...], seed: int) -> Source:
    """All weights of standard deviation 0.4, those of norms around 1."""
    source = builtin.builtin_source(f"decoder-{name}", task=None, settings_given=(*SIZES, *settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in source.module.named_parameters():
            noise = 0.4 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + noise if key.endswith("norm.weight") else noise)
    return source


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "seed"),
    in_short(SEEDS, lambda name, *_: name == "rope-dynamic"),
    ids=[row[0] for row in SEEDS],
)
def test_every_token_is_pytorchs(name: str, settings: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    source = decoder(name, settings, seed)
    inputs, outputs, limits = source.inputs, source.outputs, source.limits
    of = decoder_interface(inputs, outputs)
    assert of is not None
    length, count = steps.sizes(limits)
    assert count == steps.STEPS == 64
    prompts = steps.draw_prompts(of.tokens, limits, length)
    own, truth = (PrecisionCopy(source.module, dtype, outputs=len(outputs)) for dtype in (torch.float32, torch.float64))
    names = [spec.name for spec in outputs]
    walked = steps.rollout(own, of, prompts, count, names)
    wanted = steps.rollout(truth, of, prompts, count, names, walked.tokens_BK).logits_BKV

    assert [len(set(row[-20:])) >= 10 for row in walked.tokens_BK.tolist()] == [True] * 3
    error = measure(walked.logits_BKV, wanted, outputs[0].axes, None)
    # both of the two best logits may be off by the tolerance
    least = 2 * tolerance("fp32", "logits", error.error) * error.scale
    assert steps.gaps(wanted).min() > least

    model = exported(source, tmp_path).SerializeToString()
    runner = Runner(model, inputs=[s.name for s in inputs], outputs=[s.name for s in outputs], threads=1)
    got = measure(
        steps.rollout(runner, of, prompts, count, names, walked.tokens_BK).logits_BKV, wanted, outputs[0].axes, None
    )
    assert got.error <= tolerance("fp32", "logits", error.error)
    free = steps.free_tokens(runner, of, prompts, count, limits, "cpu")
    assert free == walked.tokens_BK.tolist()
    found = steps.compare(free, walked.tokens_BK, steps.gaps(wanted), least)
    assert found == ("pass", "192 of 192 tokens are certain")


def test_steps_are_chosen_with_a_cache_in_the_graphs_precision(tmp_path: Path) -> None:
    """A source's cache is float32: on a card every proof of a decoder in 16 bits ended here; emulation has float32."""
    source = decoder("rope", (), 0)
    settings = [pair.partition("=")[::2] for pair in SIZES]
    posexport.convert("decoder-rope", tmp_path / "b", settings=dict(settings), precision="fp16", verify=False)
    of = decoder_interface(source.inputs, source.outputs)
    assert of is not None
    assert {spec.dtype for spec in of.past} == {"float32"}
    runner = Runner.of(source, tmp_path / "b" / "model.onnx", threads=1)
    free = steps.free_tokens(runner, of, [[5, 6, 7], [8]], 4, source.limits, "cpu")
    assert not isinstance(free, str), free
    assert [len(row) for row in free] == [4, 4]
