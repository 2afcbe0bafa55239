"""Opset and IR version that the installed ONNX Runtime accepts, tried with a small model."""

import functools

from posexport.base.targets.providers import targets
from posexport.base.targets.target import ATTENTION_OPSET, BLOCKED_OPSET, KEPT_KEYS_OPSET
from posexport.errors import PosexportError

DEFAULT_OPSET = 18
#: IR 10 is understood by ONNX Runtime 1.18 and later and by the browsers' builds; nothing in a bundle needs a newer
#: one.
IR_VERSION = 10
LOWEST_OPSET = 18
#: the first with TensorScatter, which writes to a cache of fixed size
STATIC_CACHE_OPSET = 24


@functools.cache
def takes(opset: int, ir_version: int = IR_VERSION) -> bool:
    """Whether the installed ONNX Runtime opens a model of this opset and IR version."""
    import onnx_ir as ir
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    x = ir.val("x", ir.DataType.FLOAT, [1])
    identity = ir.node("Identity", [x], outputs=[ir.val("y", ir.DataType.FLOAT, [1])])
    graph = ir.Graph([x], identity.outputs, nodes=[identity], opset_imports={"": opset}, name="identity")
    model = ir.to_proto(ir.Model(graph, ir_version=ir_version)).SerializeToString()
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (onnxruntime raises a different class for each reason; any of them is a no)
        return False
    return True


def opset(
    requested: int | None, *, static_cache: bool = False, made_for: str = "portable", blocked: bool = False
) -> int:
    """The opset to export at: ``requested`` if it is one that can be written and run, else the default.

    ``static_cache``: the graph writes to a cache of fixed size. ``made_for``: for ONNX Runtime alone the default is the
    first opset that has Attention, on a device one with a number of keys, where the installed one takes it.
    ``blocked``: weights share scales in blocks, and no operator of com.microsoft multiplies them.

    Raises:
        PosexportError: naming the lowest and the highest opset that work here.
    """
    import onnxruntime

    record = targets().get(made_for)
    if static_cache and record is not None and not record.writes_in_place:
        raise PosexportError(
            f"--cache static writes keys with TensorScatter, which {record.label} does not compute; use --cache "
            "dynamic, or another --target"
        )
    if static_cache and (requested or STATIC_CACHE_OPSET) < STATIC_CACHE_OPSET:
        raise PosexportError(
            f"--cache static needs --opset {STATIC_CACHE_OPSET} or higher, which has TensorScatter; got {requested}"
        )
    if requested is None and not static_cache:
        # a device's attention takes how many keys count
        if record is not None and record.waits_to_branch and takes(KEPT_KEYS_OPSET):
            return KEPT_KEYS_OPSET
        newer = record is not None and record.contrib and takes(ATTENTION_OPSET)
        return ATTENTION_OPSET if newer else BLOCKED_OPSET if blocked else DEFAULT_OPSET
    if requested is None:
        if not takes(STATIC_CACHE_OPSET):
            raise PosexportError(
                f"--cache static needs opset {STATIC_CACHE_OPSET}, which the installed onnxruntime "
                f"{onnxruntime.__version__} does not take; upgrade it or use --cache dynamic"
            )
        return STATIC_CACHE_OPSET

    if requested < LOWEST_OPSET or not takes(requested):
        highest = next(n for n in range(40, LOWEST_OPSET - 1, -1) if takes(n))
        raise PosexportError(
            f"--opset {requested} cannot be used: posexport writes {LOWEST_OPSET} and up, and the installed "
            f"onnxruntime {onnxruntime.__version__} takes at most {highest}"
        )
    return requested
