"""PX307: noise of the example that became a constant."""

import math
import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: elements: fewer say little about their distribution, more take long to read
_LEAST, _MOST = 1_000, 1 << 24
#: readers of noise; weights are read by products, norms and lookups
_READERS = ("Add", "Sub", "Mul", "Concat", "Slice", "Where", "Expand")
#: parameters that are drawn from a normal distribution, and may have stayed so in a model that was hardly trained
_PARAMETERS = re.compile(r"pos|embed|token|quer|latent|anchor|weight|bias|scale|gamma|beta|cls|proj", re.IGNORECASE)
#: of an estimate, in standard errors: 1 of 15,000 arrays of noise is missed
_ERRORS = 4.0


def _check(subject: Subject) -> Iterator[Place]:
    constants = {value for node in subject.nodes for value in node.inputs if value is not None}
    for value in sorted(constants, key=lambda value: value.name or ""):
        tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
        if tensor is None or not _LEAST <= tensor.size <= _MOST or not tensor.dtype.is_floating_point():
            continue
        readers = [user for user, _ in value.uses()]
        if _PARAMETERS.search(value.name or "") or not all(user.op_type in _READERS for user in readers):
            continue
        if _is_normal(np.asarray(tensor.numpy(), np.float64).reshape(-1)):
            yield Place(
                f"{value.name!r}, {list(tensor.shape)}, is a sample of the normal distribution with mean 0 and "
                f"deviation 1, which {readers[0].op_type} reads in every call",
                readers,
            )


def _is_normal(x: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> bool:
    """Whether mean, deviation, skewness and kurtosis fit a standard normal sample of this size."""
    moments = ((x.mean(), 0.0, 1.0), ((x**2).mean(), 1.0, 2.0), ((x**3).mean(), 0.0, 15.0), ((x**4).mean(), 3.0, 96.0))
    return all(abs(actual - mean) <= _ERRORS * math.sqrt(variance / x.size) for actual, mean, variance in moments)


def _sample() -> str:
    """1,024 elements of noise, for the graph below."""
    return ", ".join(f"{x:.4f}" for x in np.random.default_rng(7).standard_normal(1024))


RULE = Rule(
    code="PX307",
    name="frozen-noise",
    severity="warning",
    finds="a large constant is a standard normal sample and no weight: noise of the example",
    why="torch.randn of forward ran once, in the exporter: the same noise in every call, of the example's length.",
    remedy="Pass the noise as an input, or make it in the graph (RandomNormalLike); ignore this for a parameter that "
    "was never trained.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        frozen (float[B, 1024] x) => (float[B, 1024] y)
        <float[1, 1024] rand_noise = {SAMPLE}>
        { y = Add (x, rand_noise) }
    """.replace("SAMPLE", _sample()),
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        drawn (float[B, 1024] x) => (float[B, 1024] y)
        {
            noise = RandomNormalLike (x)
            y = Add (x, noise)
        }
    """,
)
