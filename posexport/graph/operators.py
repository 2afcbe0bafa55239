"""Names of operators of ONNX's own domain that several questions to a graph begin with."""

#: their bodies run inside them
CONTROL_FLOW = ("If", "Loop", "Scan")
#: sizes of what they read, whatever it holds
SIZES = frozenset(["Shape", "Size"])
#: nothing of what an input holds is left in the output
SHAPES = SIZES | {"ConstantOfShape"}
COMPARISONS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
#: what they give is bool
TRUTHS = COMPARISONS | {"Not", "And", "Or", "IsNaN"}
