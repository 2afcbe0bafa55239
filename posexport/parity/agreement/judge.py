"""One output of a quantized graph against the float64 reference: its figures and its verdict. Imports no torch."""

from typing import Any

import numpy as np

from posexport.parity.agreement.cosine import cosines
from posexport.parity.agreement.limits import Limits
from posexport.parity.criterion import Array, RealTokens, measure
from posexport.spec import OutputSpec


def judged(y: Array, truth: Array, spec: OutputSpec, keep_BT: RealTokens, limits: Limits) -> dict[str, Any]:
    """The fields of a `posexport.parity.report.points.Point` that say how it went."""
    error, _, note = measure(y, truth, spec.axes, keep_BT)
    if not np.isfinite(error):
        return {"output": spec.name, "error": None, "tolerance": limits.error, "verdict": "fail", "note": note}
    found = cosines(y, truth, spec, keep_BT)
    if error > limits.error:
        note = "the error is that of a broken graph"
    elif found.mean is not None and found.mean < limits.cosine:
        note = f"the mean cosine {found.mean:.4f} is below {limits.cosine:g}, as in a broken graph"
    return {
        "output": spec.name,
        "error": error,
        "tolerance": limits.error,
        "cosine": found.mean,
        "least_cosine": found.least,
        "top_1": found.top_1,
        "verdict": "fail" if note else "pass",
        "note": note,
    }
