"""Small drawings as inline SVG: axes with linear or logarithmic scales, lines, dots, bands, maps of numbers.

Colours are classes, which the style of `base.html` defines for light and dark pages. Sizes are units of the drawing;
text of 11 units stays readable where a phone makes the drawing 320 pixels wide.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: size of a drawing, and its edges: left, top, right, bottom
WIDTH, HEIGHT = 380, 230
_LEFT, _TOP, _RIGHT, _BOTTOM = 58, 12, 12, 38
#: ticks that fit along an axis
_TICKS = 6
#: colours of a signed number from -1 to 1: blue, white, red, after ColorBrewer's RdBu
_ANCHORS = np.array([[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]], dtype=float)
_MASKED = (120, 120, 120)
#: values this many times beyond the share _COMMON have the colour of its end, or nothing else would have a colour
OUTLIER, _COMMON = 2.5, 0.99


@dataclass(frozen=True)
class Scale:
    """Numbers along an axis, from ``low`` to ``high``; a ``high`` below runs the other way.

    ``whole``: ticks are whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def share(self, value: float) -> float:
        """The place of a number: 0 at ``low``, 1 at ``high``."""
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (value - low) / (high - low) if high != low else 0.5

    def ticks(self) -> list[float]:
        """Round numbers: powers of ten or two of a logarithm, else multiples of 1, 2 or 5 times a power of ten."""
        if self.log:
            return self._log_ticks()
        low, high = sorted((self.low, self.high))
        rough = max((high - low) / _TICKS, float(self.whole)) or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        step_size = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
        first_tick = math.ceil(low / step_size - 1e-9)
        return [step_size * n for n in range(first_tick, math.floor(high / step_size + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        first, last = (math.log10(end) for end in (self.low, self.high))
        powers = range(math.floor(first), math.ceil(last) + 1)
        choices = [
            *([2.0**n for n in range(0, 64, step) if self.low >= 1] for step in (1, 2)),
            [digit * 10.0**n for n in powers for digit in (1, 2, 5)],
            *([10.0**n for n in powers if n % step == 0] for step in (1, 2, 3, 6)),
        ]
        inside = [[tick for tick in ticks if self.low <= tick * 1.0001 <= self.high * 1.0002] for ticks in choices]
        return next((ticks for ticks in inside if 1 < len(ticks) <= _TICKS + 1), [self.low, self.high])


def spelled(value: float) -> str:
    """A tick: whole numbers as they are, powers of ten far from 1 in scientific notation, a true minus sign."""
    text = f"{value:g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.0e}".replace("e-0", "e-")
    return text.replace("-", "\N{MINUS SIGN}")


@dataclass
class Drawing:
    """A pair of axes; later parts of the drawing cover earlier ones."""

    label: str
    x: Scale
    y: Scale
    x_name: str = ""
    y_name: str = ""
    height: int = HEIGHT
    x_ticks: Sequence[float] | None = None
    _parts: list[str] = field(default_factory=list)

    def band(self, low: float, high: float, css: str, *, across: bool = False) -> None:
        """The area between two numbers on the horizontal axis; ``across``: on the vertical one."""
        if across:
            top, bottom = self._y(high), self._y(low)
            box: tuple[float, ...] = (_LEFT, top, WIDTH - _LEFT - _RIGHT, bottom - top)
        else:
            box = (self._x(low), _TOP, self._x(high) - self._x(low), self.height - _TOP - _BOTTOM)
        x, y, width, height = (f"{number:.1f}" for number in box)
        self._parts.append(f'<rect class="{css}" x="{x}" y="{y}" width="{width}" height="{height}"/>')

    def line(self, points: Sequence[tuple[float, float]], css: str, name: str = "") -> None:
        """A line through points; ``name``: its tooltip."""
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        title = f"<title>{escape(name)}</title>" if name else ""
        self._parts.append(f'<polyline class="line {css}" points="{path}">{title}</polyline>')

    def dots(self, points: Sequence[tuple[float, float, str]], css: str, radius: float = 3) -> None:
        """Dots, each with its tooltip."""
        for x, y, name in points:
            self._parts.append(
                f'<circle class="dot {css}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="{radius}">'
                f"<title>{escape(name)}</title></circle>"
            )

    def text(self, x: float, y: float, words: str, css: str = "", anchor: str = "middle") -> None:
        """Text anchored at a point."""
        self._parts.append(
            f'<text class="{css}" x="{self._x(x):.1f}" y="{self._y(y):.1f}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def image(self, values: Array) -> None:
        """A map of numbers over all of the area, the first row at the top."""
        self._parts.append(
            f'<image x="{_LEFT}" y="{_TOP}" width="{WIDTH - _LEFT - _RIGHT}" height="{self.height - _TOP - _BOTTOM}" '
            f'preserveAspectRatio="none" href="{heat_map(values)}"/>'
        )

    def svg(self) -> str:
        """The drawing as markup; programs that read pages aloud say ``label``."""
        right, bottom = WIDTH - _RIGHT, self.height - _BOTTOM
        axes = []
        for value in self.x.ticks() if self.x_ticks is None else self.x_ticks:
            at = f"{self._x(value):.1f}"
            axes.append(f'<path class="grid" d="M{at} {_TOP}V{bottom}"/>')
            axes.append(f'<text x="{at}" y="{bottom + 14}" text-anchor="middle">{spelled(value)}</text>')
        for value in self.y.ticks():
            at = f"{self._y(value):.1f}"
            axes.append(f'<path class="grid" d="M{_LEFT} {at}H{right}"/>')
            axes.append(f'<text x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{spelled(value)}</text>')
        names = (
            f'<text x="{(_LEFT + right) / 2}" y="{self.height - 6}" text-anchor="middle">{escape(self.x_name)}</text>'
        )
        middle = (_TOP + bottom) / 2
        names += (
            f'<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">{escape(self.y_name)}</text>'
        )
        return (
            f'<svg class="drawing" viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.label)}">'
            f"{''.join(axes)}{names}{''.join(self._parts)}</svg>"
        )

    def _x(self, value: float) -> float:
        return _LEFT + self.x.share(value) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        return self.height - _BOTTOM - self.y.share(value) * (self.height - _TOP - _BOTTOM)


def colour_limit(values: Array) -> float:
    """The size of the finite values that has the strongest colour: of all but a few that are far larger than others."""
    size = np.abs(values[np.isfinite(values)])
    if not size.size:
        return 0.0
    common, largest = float(np.quantile(size, _COMMON)), float(size.max())
    return common if 0 < OUTLIER * common < largest else largest


def heat_map(values: Array) -> str:
    """A map of numbers as the address of a PNG: zero is white, signs are blue and red, masked elements are grey."""
    masked = ~np.isfinite(values)
    largest = colour_limit(values) or 1.0
    place = (np.clip(np.where(masked, 0.0, values) / largest, -1, 1) + 1) * (len(_ANCHORS) - 1) / 2
    low = np.clip(np.floor(place).astype(int), 0, len(_ANCHORS) - 2)
    weight = (place - low)[..., None]
    pixels = np.rint(_ANCHORS[low] * (1 - weight) + _ANCHORS[low + 1] * weight).astype(np.uint8)
    pixels[masked] = _MASKED
    return "data:image/png;base64," + base64.b64encode(_png(pixels)).decode()


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels [rows, columns, 3] as a PNG (ISO/IEC 15948): header, one compressed block, end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
