"""Every operator has the right derivative, and every encoder can be trained."""

import numpy as np
import pytest
import torch

from posexport.graph.ops.operator import OPERATORS
from posexport.sources import builtin


def inputs(operator, case):
    rng = np.random.default_rng(30)
    B, H, T, S, D = case.batch, case.heads, case.queries, case.keys, case.head_size
    shapes = {"q": (B, H, T, D), "k": (B, H, S, D), "probs": (B, H, T, S)}
    arrays = [rng.standard_normal(shapes[name]) for name in operator.takes]
    arrays += [np.asarray(array) for array in operator.draw(case, rng)]
    found = [torch.from_numpy(np.array(array)) for array in arrays]
    found = [x.double().requires_grad_() if x.is_floating_point() else x for x in found]
    return [*found, torch.arange(T) + case.offset, torch.arange(S)]


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_are_those_of_small_differences(name):
    cases = [case for case in OPERATORS[name].cases if abs(case.offset) < 1000]
    assert any(case.queries > 256 for case in cases), "no case of several blocks"
    for case in cases:
        given = inputs(OPERATORS[name], case)
        assert torch.autograd.gradcheck(OPERATORS[name].eager, given, fast_mode=True)


@pytest.mark.parametrize("name", [name for name, (kind, _) in builtin.models().items() if kind.name == "encoder"])
def test_every_parameter_of_an_encoder_gets_a_gradient(name):
    settings = ("hidden=20", "heads=5", "layers=1", "feedforward=7", "vocab=31", "max_positions=23")
    module = builtin.builtin_source(name, task="token-classification", settings_given=settings).module.train()
    ids = torch.arange(2 * 23).reshape(2, 23) % 31
    (logits,) = module(input_ids=ids, attention_mask=torch.ones_like(ids))
    logits.square().mean().backward()
    assert not [key for key, parameter in module.named_parameters() if parameter.grad is None]
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
