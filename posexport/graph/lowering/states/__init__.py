"""Ways to compute layers with a state between tokens (`posexport.graph.ops.states`): one file a way."""

from posexport.graph.lowering.lowering import Lowering
from posexport.graph.lowering.states.conv import ConcatenatedConv
from posexport.graph.lowering.states.microsoft import LinearAttention
from posexport.graph.lowering.states.scan import TokenScan
from posexport.graph.ops.states import ConvolutionSpec, RecurrenceSpec

#: In order of preference: the first that does not refuse is chosen.
RECURRENCES: tuple[Lowering[RecurrenceSpec], ...] = (LinearAttention(), TokenScan())
CONVOLUTIONS: tuple[Lowering[ConvolutionSpec], ...] = (ConcatenatedConv(),)
