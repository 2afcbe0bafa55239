"""Ways to project sines and cosines of distances (`posexport.ops.waves`): one file a way."""

from posexport.lowering.lowering import Lowering
from posexport.lowering.waves.projected import Projected
from posexport.lowering.waves.tabulated import Tabulated
from posexport.ops.waves import ProjectionSpec

#: In order of preference: the first that does not refuse is chosen.
LOWERINGS: tuple[Lowering[ProjectionSpec], ...] = (Tabulated(), Projected())
