"""Ways to compute layers with a state between tokens (`posexport.ops.states`): one file a way."""

from posexport.lowering.lowering import Lowering
from posexport.lowering.states.conv import ConcatenatedConv
from posexport.lowering.states.microsoft import LinearAttention
from posexport.lowering.states.scan import TokenScan
from posexport.ops.states import ConvolutionSpec, RecurrenceSpec

#: In order of preference: the first that does not refuse is chosen.
RECURRENCES: tuple[Lowering[RecurrenceSpec], ...] = (LinearAttention(), TokenScan())
CONVOLUTIONS: tuple[Lowering[ConvolutionSpec], ...] = (ConcatenatedConv(),)
