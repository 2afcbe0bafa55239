"""Execution providers that audits know by published lists of operators: no graph of posexport has run on them.

``ci/kernels/listed.py`` writes the lists.
"""

from posexport.base.targets.providers import PROVIDERS, Provider

COREML = Provider(
    name="coreml",
    label="CoreML",
    ort_name="CoreMLExecutionProvider",
    package="onnxruntime",
    is_target=False,
    contrib=False,
    # RequireStaticInputShapes in ONNX Runtime's page about it; of Reshape in reshape_op_builder.cc
    sizes="computes them slower, and leaves each Reshape to the CPU",
    # cast_op_builder.cc
    int64="has none: they are converted from and to int32 in every call",
)
DML = Provider(
    name="dml",
    label="DirectML",
    ort_name="DmlExecutionProvider",
    package="onnxruntime-directml",
    is_target=False,
    # its page, "Performance Tuning"
    sizes="compiles the graph in one piece, with its weights prepared, only where all sizes are known",
    # also microsoft/DirectML 727; one of its authors doubts it there
    int64="is said to fail for int64 indices of Gather, ScatterND and TopK (onnxruntime issue 27118)",
)
QNN = Provider(
    name="qnn",
    label="QNN",
    ort_name="QNNExecutionProvider",
    package="onnxruntime-qnn",
    is_target=False,
    contrib=False,
    # its page, "Model requirements"
    sizes="takes none: the CPU computes all nodes that depend on them",
    # ProcessInt64Tensors in base_op_builder.cc
    int64="has none: each one is cast to int32",
)
LISTED = {provider.name: provider for provider in (COREML, DML, QNN)}


def audited() -> dict[str, Provider]:
    """All providers that a file can be audited for, by name."""
    return {**PROVIDERS, **LISTED}
