"""ONNX's own reference evaluator (NumPy) with bundles of --inline, for any runtime: with_reference.py JOB ANSWER"""

from importlib.metadata import version

from inline import Model, main
from onnx.reference import ReferenceEvaluator


def opened(file: str) -> Model:
    """The model of a file."""
    model = ReferenceEvaluator(file)
    past = {port.name: port.type.tensor_type.shape.dim for port in model.proto_.graph.input if "past_" in port.name}
    return Model(
        lambda feeds: dict(zip(model.output_names, model.run(None, feeds), strict=True)),
        {name: (dims[1].dim_value, dims[3].dim_value) for name, dims in past.items()},
    )


main(opened, {"onnx": version("onnx")})
