"""Names of standard operators by kind, for queries of graphs."""

#: with bodies
CONTROL_FLOW = ("If", "Loop", "Scan")
#: return sizes of their input
SIZES = frozenset(["Shape", "Size"])
#: the output has none of the input's elements
SHAPES = SIZES | {"ConstantOfShape"}
COMPARISONS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
#: the output is bool
TRUTHS = COMPARISONS | {"Not", "And", "Or", "IsNaN"}
