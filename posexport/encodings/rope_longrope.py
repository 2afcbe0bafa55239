"""Rotary position embedding by LongRoPE: a divisor for every pair, other ones beyond the original length of the row.

Ding et al., "LongRoPE" (arXiv:2402.13753), as released with Phi-3 (see `posexport.encodings.frequencies.longrope` for
what is not done). A row's length is its largest position and one in the call at hand, as in rope-dynamic.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.longrope import LongRope
from posexport.encodings.rope_base import Rotary
from posexport.errors import PosexportError
from posexport.ops.rotation import Layout


def oracle(
    x_BHTD: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    head_size: int,
    layout: str = "half",
    base: float = 10000.0,
    rotary_dim: int | None = None,
    short_factor: str = "1",
    long_factor: str = "4",
    factor: float = 4.0,
    max_positions: int = 4096,
    attention: float | None = None,
) -> Array:
    """Row by row: positions divided by the list that the row's length chooses; vectors times Phi-3's scale."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    lists = [np.array(text.split(","), dtype=np.float64) for text in (short_factor, long_factor)]
    long_B1 = pos_BT.max(1)[:, None] >= max_positions
    size = np.sqrt(np.log(max_positions * factor) / np.log(max_positions)) if attention is None else attention
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        divisor_B1 = np.where(long_B1, lists[1][i % len(lists[1])], lists[0][i % len(lists[0])])
        angle_BT = pos_BT / (divisor_B1 * np.power(base, 2 * i / dim))
        turned = size * (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-longrope",
    cases=[
        {"head_size": 20, "max_positions": 300},
        # the second row of every test stands three positions further on: only it is longer than this
        {
            "head_size": 6,
            "max_positions": 4101,
            "short_factor": "1,1.5,2",
            "long_factor": "1.25, 8,64",
            "layout": "interleaved",
        },
        {"head_size": 12, "max_positions": 2059, "attention": 1.5},
        {"head_size": 14, "rotary_dim": 4, "base": 500.0, "max_positions": 5000, "short_factor": "1.5,3", "factor": 32},
    ],
    source="Ding et al. 2024, arXiv:2402.13753, section 3.2",
    rotate=oracle,
)
class RopeLongrope(Rotary):
    """Rotates queries and keys at frequencies divided pair by pair, by another list in long rows; takes any length.

    ``short_factor``, ``long_factor``: divisors for rows up to and beyond ``max_positions``, the original length: one
    number, or one a pair joined by commas. ``attention``: on queries and keys; where None it is
    sqrt(1 + ln(factor) / ln(max_positions)), ``factor`` saying how many times longer inputs become.
    """

    schedule_type = LongRope
    length_dependent = True
    shift_invariant = False
    padding_invariant = False

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        short_factor: str = "1",
        long_factor: str = "4",
        factor: float = 4.0,
        max_positions: int = 4096,
        attention: float | None = None,
    ) -> None:
        dim = head_size if rotary_dim is None else rotary_dim
        schedule = LongRope(
            dim=dim,
            base=base,
            short_factor=_divisors("short_factor", short_factor, dim // 2),
            long_factor=_divisors("long_factor", long_factor, dim // 2),
            factor=factor,
            max_positions=max_positions,
            attention=attention,
        )
        super().__init__(
            schedule,
            layout,
            head_size=head_size,
            base=base,
            rotary_dim=rotary_dim,
            short_factor=short_factor,
            long_factor=long_factor,
            factor=factor,
            max_positions=max_positions,
            attention=attention,
        )


def _divisors(name: str, text: str, pairs: int) -> tuple[float, ...]:
    """The numbers in ``text``, one of them repeated for all pairs."""
    try:
        found = tuple(float(part) for part in str(text).split(","))
    except ValueError as err:
        raise PosexportError(
            f"{RopeLongrope.name}: {name} must be one number, or {pairs} joined by commas, got {text!r}"
        ) from err
    return found * pairs if len(found) == 1 else found
