"""Ways to turn pairs of channels (`posexport.graph.ops.rotation`): one file a way.

All turn in the type of the cosines, float32 or wider, and give the type of the queries or keys: in a model of half
precision nothing is turned in half precision. Casts between equal types are dropped by ONNX Runtime.
"""

from posexport.graph.lowering.lowering import Lowering
from posexport.graph.lowering.rotation.formula import Turned
from posexport.graph.lowering.rotation.microsoft import MicrosoftRotary
from posexport.graph.lowering.rotation.onnx import OnnxRotary
from posexport.graph.ops.rotation import RotationSpec

#: In order of preference: the first that does not refuse is chosen.
LOWERINGS: tuple[Lowering[RotationSpec], ...] = (OnnxRotary(), MicrosoftRotary(), Turned())
#: In order of preference where all rows share cosines and sines, which only ONNX Runtime's operator accepts without a
#: batch axis.
SHARED_LOWERINGS: tuple[Lowering[RotationSpec], ...] = (MicrosoftRotary(), OnnxRotary(), Turned())
