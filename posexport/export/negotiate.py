"""Opset and IR version that the installed ONNX Runtime takes, found by asking it."""

import functools

from posexport.errors import PosexportError

DEFAULT_OPSET = 18
#: IR 10 is understood by ONNX Runtime 1.18 and later and by the browsers' builds; nothing in a bundle needs a newer
#: one.
IR_VERSION = 10
LOWEST_OPSET = 18


@functools.cache
def takes(opset: int, ir_version: int = IR_VERSION) -> bool:
    """Whether the installed ONNX Runtime opens a model of this opset and IR version."""
    import onnx.parser
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    text = (
        f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> g (float[1] x) => (float[1] y) {{ y = Identity(x) }}'
    )
    try:
        onnxruntime.InferenceSession(
            onnx.parser.parse_model(text).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # onnxruntime raises a different class for each reason; any of them is a no
        return False
    return True


def opset(wanted: int | None) -> int:
    """The opset to export at: ``wanted`` if it is one that can be written and run, else the default.

    Raises:
        PosexportError: naming the lowest and the highest opset that work here.
    """
    if wanted is None:
        return DEFAULT_OPSET
    import onnxruntime

    if wanted < LOWEST_OPSET or not takes(wanted):
        highest = next(n for n in range(40, LOWEST_OPSET - 1, -1) if takes(n))
        raise PosexportError(
            f"--opset {wanted} cannot be used: posexport writes {LOWEST_OPSET} and up, and the installed onnxruntime "
            f"{onnxruntime.__version__} takes at most {highest}"
        )
    return wanted
