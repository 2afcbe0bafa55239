"""The few shapes that the pictures of a comparison are made of, as SVG. Imports nothing heavy."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

#: told apart by readers who do not tell red from green (after Okabe and Ito 2008), dark enough to be read on white
COLOURS = ("#0072b2", "#d55e00", "#00825f", "#b0408f", "#7a5c00", "#2a8fbd", "#000000")
GREY = "#767676"


def text(x: float, y: float, words: str, *, size: float = 11, anchor: str = "start", colour: str = "#222222") -> str:
    """One line of words; ``anchor`` is start, middle or end."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">'
        f"{html.escape(words)}</text>"
    )


def line(points: Sequence[tuple[float, float]], colour: str, *, width: float = 1.6, dashed: bool = False) -> str:
    """Points, joined."""
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def dot(x: float, y: float, colour: str, tip: str, *, radius: float = 3) -> str:
    """A filled circle that says ``tip`` when it is pointed at."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"><title>{html.escape(tip)}</title></circle>'


def drawing(width: float, height: float, label: str, shapes: Sequence[str]) -> str:
    """A whole picture, as wide as the page allows."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{html.escape(label)}" '
        f'style="max-width:{width:.0f}px" font-family="sans-serif">{"".join(shapes)}</svg>'
    )


@dataclass(frozen=True)
class Frame:
    """A rectangle with axes: ``x`` from ``low_x`` to ``high_x`` of the data, ``y`` likewise, upwards."""

    left: float
    top: float
    width: float
    height: float
    low_x: float
    high_x: float
    low_y: float = 0.0
    high_y: float = 1.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data lies on the page."""
        across = (x - self.low_x) / (self.high_x - self.low_x)
        up = (y - self.low_y) / (self.high_y - self.low_y)
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def border(self) -> str:
        """The rectangle."""
        return (
            f'<rect x="{self.left:.1f}" y="{self.top:.1f}" width="{self.width:.1f}" height="{self.height:.1f}" '
            f'fill="none" stroke="{GREY}"/>'
        )

    def across(self, y: float, colour: str = "#e5e5e5", *, dashed: bool = False) -> str:
        """A line from side to side."""
        return line([self.at(self.low_x, y), self.at(self.high_x, y)], colour, width=1, dashed=dashed)
