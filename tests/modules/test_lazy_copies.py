"""Copies of a module share large parameters until one of them is written to."""

import copy

import psutil
import pytest
import torch
from torch import nn

from posexport.modules.copied import copied
from posexport.modules.user_module import by_name


def _large() -> nn.Module:
    return nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 8))


@pytest.mark.parametrize("of_source", [False, True])
def test_copies_take_no_memory(of_source: bool) -> None:
    module = _large()
    user = by_name("large", module, [], [])
    before = psutil.Process().memory_info().rss
    copies = [copy.deepcopy(user) if of_source else copied("large", module) for _ in range(20)]
    assert psutil.Process().memory_info().rss - before < 5 * 2048 * 2048 * 4
    assert len({id(one) for one in copies}) == 20


def test_a_copy_that_is_written_to_is_its_own() -> None:
    module = _large()
    values = [parameter.detach().clone() for parameter in module.parameters()]
    one, two = copied("large", module), copied("large", module)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(1)
        for parameter in module.parameters():
            parameter.mul_(2)
    for value, parameter, changed, kept in zip(
        values, module.parameters(), one.parameters(), two.parameters(), strict=True
    ):
        assert torch.equal(changed, value + 1)
        assert torch.equal(parameter, value * 2)
        assert torch.equal(kept, value)


def test_parameters_that_cannot_be_shared_are_copied() -> None:
    module = nn.Linear(512, 512, bias=False)
    array = module.weight.detach().numpy().copy()
    module.weight = nn.Parameter(torch.from_numpy(array))  # NumPy's memory
    one = copied("linear", module)
    array += 1
    assert torch.equal(one.weight + 1, module.weight)
