"""Activations by transformers' names: its own values, and formulas in NumPy."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from posexport.errors import PosexportError
from posexport.nn.feed_forward import ACTIVATIONS, activation
from tests.tolerances import agree

GOLDEN = json.loads((Path(__file__).parents[1] / "golden_activations.json").read_text())
X = np.array(GOLDEN["numbers"])
#: transformers writes the square root of 2 / pi with ten digits
SHORT_CONSTANT = ("gelu_fast",)


def erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(each) for each in x])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.array([1 / (1 + math.exp(-each)) if each > 0 else math.exp(each) / (1 + math.exp(each)) for each in x])


def softplus(x: np.ndarray) -> np.ndarray:
    return np.array([max(each, 0.0) + math.log1p(math.exp(-abs(each))) for each in x])


def gelu(x: np.ndarray) -> np.ndarray:
    # by the complement, which keeps its digits far below zero
    return np.array([x_ * 0.5 * math.erfc(-x_ / math.sqrt(2)) for x_ in x])


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    # 0.5 (1 + tanh a) is the logistic function of 2 a
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


ORACLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": gelu,
    "gelu_10": lambda x: np.clip(gelu(x), -10, 10),
    "gelu_accurate": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "gelu_new": tanh_gelu,
    "gelu_python": gelu,
    "gelu_python_tanh": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "laplace": lambda x: (1 + erf((x - 0.707107) / (0.282095 * math.sqrt(2)))) / 2,
    "leaky_relu": lambda x: np.where(x > 0, x, x / 100),
    "linear": lambda x: x,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "sqrtsoftplus": lambda x: np.sqrt(softplus(x)),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_it_is_the_formula(name: str) -> None:
    got = activation(name)(torch.from_numpy(X))
    agree(got, torch.from_numpy(ORACLES[name](X)), "rounded", torch.float64)


@pytest.mark.parametrize("name", GOLDEN["values"])
def test_it_is_that_of_transformers(name: str) -> None:
    wanted = GOLDEN["values"][name]
    if wanted is None:
        with pytest.raises(PosexportError, match="has weights of its own, which are not read"):
            activation(name)
        return
    got = activation(name)(torch.from_numpy(X)).numpy()
    limit = 1e-9 if name in SHORT_CONSTANT else 1e-14
    assert np.abs(got - wanted).max() <= limit * np.abs(wanted).max()


def test_every_name_has_a_formula() -> None:
    assert set(ORACLES) == set(ACTIVATIONS)
    with pytest.raises(PosexportError, match="unknown activation 'erf'; known: gelu, gelu_10"):
        activation("erf")
