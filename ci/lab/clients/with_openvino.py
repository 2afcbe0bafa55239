"""OpenVINO with bundles of --inline: with_openvino.py JOB ANSWER"""

from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from inline import Model, main


def opened(core: ov.Core, file: str) -> Model:
    """The model on the CPU, in float32: OpenVINO computes in bfloat16 by default where the CPU has it."""
    model = core.compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(feeds: dict[str, Any]) -> dict[str, np.ndarray]:
        results = model(feeds)
        return {port.any_name: results[port].copy() for port in model.outputs}

    past = {port.any_name: port.partial_shape for port in model.inputs if port.any_name.startswith("past_key_values.")}
    return Model(run, {name: (shape[1].get_length(), shape[3].get_length()) for name, shape in past.items()})


main(partial(opened, ov.Core()), {"openvino": ov.__version__})
