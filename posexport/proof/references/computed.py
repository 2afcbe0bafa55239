"""An output of the definition at one point of the grid, which a graph's output is measured against."""

from dataclasses import dataclass

import numpy as np

from posexport.base.spec import OutputSpec
from posexport.proof.criterion import Array, Measured, RealTokens, is_exact, measure


@dataclass(frozen=True)
class Computed:
    """One output at one point, computed in float64.

    Attributes:
        keep_BT: which tokens are compared.
        dtype: what the graph has to answer in, where that is no integer; None: any.
    """

    spec: OutputSpec
    y64: Array
    keep_BT: RealTokens
    baseline: Measured
    dtype: str | None

    @property
    def output(self) -> str:
        """The name of the output that is compared."""
        return self.spec.name

    def measure(self, y: Array) -> Measured:
        """The error of ``y``; infinite where it has another type."""
        measured = measure(y, self.y64, self.spec.axes, self.keep_BT)
        dtype = str(self.y64.dtype) if is_exact(self.y64) else self.dtype
        if dtype is None or y.dtype == dtype:
            return measured
        return Measured(np.inf, 0.0, f"{y.dtype} instead of {dtype}")
