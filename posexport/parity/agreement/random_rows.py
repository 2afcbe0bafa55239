"""Random tokens as a graph's inputs: what its activations look like, without texts. Imports no torch."""

from posexport.parity.grid.inputs import Feeds, draw
from posexport.parity.grid.point import GridPoint
from posexport.sizes import multiple
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE, Interface, LengthContract, Role

#: (batch, tokens) of the calls
CALLS = ((4, 13), (4, 48))
#: what real inputs look like, random ids and all of no padding do too; real numbers, such as sounds, do not
_ROLES: frozenset[Role] = frozenset(["tokens", "types", "mask", "flags", "cache", "positions", "lengths"])


def random_rows(graph: Interface, limits: LengthContract) -> list[Feeds]:
    """Feeds without padding, within the lengths that the graph accepts; none where it reads more than tokens."""
    roles = {spec.role for spec in graph.inputs}
    if "tokens" not in roles or not roles <= _ROLES:
        return []
    two = any(ENCODER_SEQUENCE in spec.axes for spec in graph.inputs)
    feeds = []
    for batch, wanted in CALLS:
        length = multiple(max(wanted, limits.min_length), limits.size_steps.get(SEQUENCE, 1))
        length = min(length, limits.max_length or length)
        point = GridPoint(batch=batch, length=length, encoder_length=length if two else None)
        feeds.append(draw(point, graph.inputs))
    return feeds
