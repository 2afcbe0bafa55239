"""A graph in half precision as a float32 graph that rounds: a GPU's values, on a machine without one.

ONNX Runtime's CPU kernels of float16 compute in float32 and fold casts away, and of bfloat16 there are next to none. So
values of the half type become float32 here, and the output of every operator is rounded to the half type.
"""

from posexport.graph.precision.emulate.emulate import LIMITS as LIMITS
from posexport.graph.precision.emulate.emulate import emulate as emulate
from posexport.graph.precision.emulate.emulate import emulated as emulated
