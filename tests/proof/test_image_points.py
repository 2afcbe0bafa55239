"""Points of a proof without an axis of tokens."""

from posexport.base.spec import BATCH, HEIGHT, WIDTH, InputSpec
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint


def test_pictures_of_a_size_are_drawn() -> None:
    spec = InputSpec(name="pixel_values", dtype="float32", axes=[BATCH, 3, HEIGHT, WIDTH], role="values")
    arrays = draw(GridPoint(batch=2, length=12, image=(12, 20)), [spec])
    assert {name: array.shape for name, array in arrays.items()} == {"pixel_values": (2, 3, 12, 20)}
