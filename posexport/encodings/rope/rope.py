"""Rotary position embedding: pairs of channels of queries and keys, rotated by position times frequency.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2, equation 34. RoFormer and GPT-J store pairs ``interleaved``,
GPT-NeoX and Llama as two ``half``s, which is the default here. Not done: a rotation of the values, as RoFormer offers.
Shape letters: B batch, H heads, T tokens, D head size, F pairs of channels.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import FromTwo
from posexport.encodings.encoding import ENCODINGS, Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.encodings.rope import plain
from posexport.encodings.rope.schedule import Schedule
from posexport.errors import PosexportError
from posexport.graph.ops.rotation import Layout, rotate

Role = Literal["query", "key"]


def rotation_oracle(frequencies: Callable[..., tuple[Array, float]]) -> Callable[..., Array]:
    """Equation 13, pair by pair: (a + ib) e^(i m theta), times the attention factor.

    ``frequencies(length_B1, *, dim, **settings)`` is the schedule's oracle: theta, [F] or [B, F], and that factor.
    """

    def oracle(
        x_BHTD: Array,
        pos_BT: Array,
        *,
        params: Mapping[str, Array],
        head_size: int,
        layout: str = "half",
        rotary_dim: int | None = None,
        **settings: Any,
    ) -> Array:
        assert not params
        assert x_BHTD.shape[-1] == head_size
        dim = rotary_dim or head_size
        theta_BF, factor = frequencies(pos_BT.max(1)[:, None] + 1.0, dim=dim, **settings)
        out = np.array(x_BHTD)
        for i in range(dim // 2):
            a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
            angle_BT = pos_BT * np.asarray(theta_BF[..., i])[..., None]
            rotated = factor * (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
            out[..., a], out[..., b] = rotated.real, rotated.imag
        return out

    return oracle


@register(
    plain.Plain.name,
    cases=[
        {"head_size": 20},
        {"head_size": 6, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0},
        {"head_size": 9, "rotary_dim": 4, "layout": "interleaved"},
        {"head_size": 2},
    ],
    source="Su et al. 2021, arXiv:2104.09864, section 3.2.2",
    rotate=rotation_oracle(plain.oracle),
)
class Rope(Encoding):
    """Turns pairs of channels of queries and keys by ``position base^(-2i / dim)``; takes any length.

    ``rotary_dim``: the first channels of a head that are rotated, all where it is None; the rest is left as it is.
    Angles, and queries and keys while they are rotated, are float32 or wider; the cast is last. A subclass names
    another schedule; its constructor takes the schedule's settings too.
    """

    schedule_type: ClassVar[type[Schedule]] = plain.Plain

    def __init_subclass__(cls, schedule: type[Schedule] | None = None) -> None:
        super().__init_subclass__()
        if schedule is not None:
            cls.schedule_type = schedule
            cls.length_dependent = schedule.by_length
            cls.shift_invariant = cls.padding_invariant = not schedule.by_length

    def __init__(self, *, head_size: FromTwo, layout: Layout = "half", **settings: Any) -> None:
        signature = inspect.Signature(list(self.arguments().values()))
        bound = signature.bind(head_size=head_size, layout=layout, **settings)
        bound.apply_defaults()
        arguments = bound.arguments
        scheduled = {name: arguments[name] for name in self.schedule_type.arguments() if name in arguments}
        schedule = self.schedule_type.for_head(head_size, **scheduled)
        super().__init__(**arguments)
        if schedule.dim > head_size:
            raise PosexportError(f"{self.name}: {schedule.dim} rotated channels do not fit into head_size={head_size}")
        self.schedule = schedule
        self.layout: Layout = layout

    @classmethod
    def arguments(cls) -> dict[str, inspect.Parameter]:
        """With the schedule's arguments, unless a subclass's constructor lists its arguments itself."""
        arguments = super().arguments()
        named = inspect.signature(cls).parameters.values()
        return arguments | cls.schedule_type.arguments() if any(p.kind is p.VAR_KEYWORD for p in named) else arguments

    @property
    def boundaries(self) -> list[int]:
        """The schedule's original length, where it has one."""
        return self.schedule.boundaries

    @property
    def cached_keys_until(self) -> int | None:
        return self.schedule.cached_keys_until

    def rotate(self, x_BHTD: Tensor, positions: Positions, role: Role) -> Tensor:
        """Pair by pair: ``(a + ib) exp(i position frequency)``, times the schedule's attention factor."""
        wide = torch.promote_types(x_BHTD.dtype, torch.float32)
        return rotate(x_BHTD, *self.waves(positions, wide, role), self.layout)

    def waves(self, positions: Positions, dtype: torch.dtype, role: Role) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles times the attention factor, [B or 1, 1, T, F].

        Every layer asks for them; in an exported graph equal ones are one set of nodes.
        """
        frequency_BF = self.schedule.frequencies(positions.ids_BT, dtype)
        angle_B1TF = positions.ids_BT[:, None, :, None].to(dtype) * frequency_BF[:, None, None, :]
        factor = self.schedule.attention_factor
        if factor == 1:
            return angle_B1TF.cos(), angle_B1TF.sin()
        return angle_B1TF.cos() * factor, angle_B1TF.sin() * factor


def rotation(schedule: Schedule, *, head_size: int, layout: Layout = "half") -> Rope:
    """The registered encoding with this schedule, as a checkpoint's configuration gives it."""
    cls = ENCODINGS[schedule.name].cls
    if not issubclass(cls, Rope) or cls.schedule_type is not type(schedule):
        raise LookupError(f"no encoding is registered for {type(schedule).__name__}")
    return cls(head_size=head_size, layout=layout, **schedule.settings)
