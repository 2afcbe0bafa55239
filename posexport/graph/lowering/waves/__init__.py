"""Ways to project sines and cosines of distances (`posexport.graph.ops.waves`): one file a way."""

from posexport.graph.lowering.lowering import Lowering
from posexport.graph.lowering.waves.projected import Projected
from posexport.graph.lowering.waves.tabulated import Tabulated
from posexport.graph.ops.waves import ProjectionSpec

#: In order of preference: the first that does not refuse is chosen.
LOWERINGS: tuple[Lowering[ProjectionSpec], ...] = (Tabulated(), Projected())
