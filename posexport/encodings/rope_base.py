"""The rotation that all rotary encodings share: one schedule of frequencies, one storage of pairs.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2, equation 34. Shape letters: B batch, H heads, T tokens, D head
size, F pairs of channels.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posexport.encodings.encoding import ENCODINGS, Encoding
from posexport.encodings.frequencies.schedule import Schedule
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.ops.rotation import LAYOUTS, Layout, rotate

Role = Literal["query", "key"]


class Rotary(Encoding):
    """Turns pairs of channels of queries and keys by position times frequency; takes any length.

    The first ``schedule.dim`` channels of a head are rotated, the rest is left as it is. Angles, and queries and keys
    while they are turned, are float32 or wider; the cast is last. A named encoding is a subclass whose constructor
    takes the fields of its ``schedule_type``.
    """

    #: what a registered subclass is the encoding of; None: not to be found by its schedule
    schedule_type: ClassVar[type[Schedule] | None] = None

    def __init__(self, schedule: Schedule, layout: Layout, *, head_size: int, **parameters: Any) -> None:
        super().__init__(head_size=head_size, layout=layout, **parameters)
        self._at_least(2, head_size=head_size)
        if layout not in LAYOUTS:
            raise PosexportError(f"{self.name}: layout must be half or interleaved, got {layout!r}")
        if schedule.dim > head_size:
            raise PosexportError(f"{self.name}: {schedule.dim} rotated channels do not fit into head_size={head_size}")
        self.schedule = schedule
        self.layout: Layout = layout

    @property
    def boundaries(self) -> list[int]:
        """The schedule's original length, where it has one."""
        return self.schedule.boundaries

    def rotate(self, x_BHTD: Tensor, positions: Positions, role: Role) -> Tensor:
        """Pair by pair: ``(a + ib) exp(i position frequency)``, times the schedule's attention factor."""
        wide = torch.promote_types(x_BHTD.dtype, torch.float32)
        return rotate(x_BHTD, *self.waves(positions, wide, role), self.layout)

    def waves(self, positions: Positions, dtype: torch.dtype, role: Role) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles times the attention factor, [B or 1, 1, T, F].

        Every layer asks for them; in an exported graph equal ones are one set of nodes.
        """
        del role
        frequency_BF = self.schedule.frequencies(positions.ids_BT, dtype)
        angle_B1TF = positions.ids_BT[:, None, :, None].to(dtype) * frequency_BF[:, None, None, :]
        factor = self.schedule.attention_factor
        if factor == 1:
            return angle_B1TF.cos(), angle_B1TF.sin()
        return angle_B1TF.cos() * factor, angle_B1TF.sin() * factor


def rotation(schedule: Schedule, *, head_size: int, layout: Layout = "half") -> Rotary:
    """The registered encoding with this schedule, as a checkpoint's configuration gives it."""
    for entry in ENCODINGS.values():
        if issubclass(entry.cls, Rotary) and entry.cls.schedule_type is type(schedule):
            # every subclass takes its schedule's fields, which `test_rope` holds them to
            make: Any = entry.cls
            found: Rotary = make(head_size=head_size, layout=layout, **schedule.settings())
            return found
    raise LookupError(f"no encoding is registered for {type(schedule).__name__}")
