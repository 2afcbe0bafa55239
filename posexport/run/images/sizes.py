"""Sizes of preprocessor_config.json in all their forms, and the size [height, width] that a picture gets."""

from collections.abc import Mapping, Sequence

from posexport.errors import PosexportError

#: as configurations say it: edges, [height, width], or by name
SizeSetting = int | list[int] | dict[str, int]
#: checked: one of `_FORMS`
Size = Mapping[str, int]
_FORMS = (
    {"height", "width"},
    {"shortest_edge"},
    {"shortest_edge", "longest_edge"},
    {"longest_edge"},
    {"max_height", "max_width"},
    {"min_pixels", "max_pixels"},
)


def read_size(value: SizeSetting, setting: str, *, square: bool = True) -> Size:
    """``value`` by names; a single number is both edges if ``square``, else the shortest edge.

    Raises PosexportError for names that transformers does not have, or a number below 1.
    """
    if isinstance(value, int):
        size = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, Sequence):
        if len(value) != 2:
            raise PosexportError(f"{setting} is {list(value)}; give [height, width]")
        size = {"height": value[0], "width": value[1]}
    else:
        size = dict(value)
    if set(size) not in _FORMS:
        forms = "; ".join(" and ".join(sorted(form)) for form in _FORMS)
        raise PosexportError(f"{setting} has {', '.join(size) or 'no names'}; give one of: {forms}")
    if small := [name for name, edge in size.items() if edge < 1]:
        raise PosexportError(f"{setting}.{small[0]} is {size[small[0]]}; it must be at least 1")
    return size


def resized(shape: Sequence[int], size: Size) -> tuple[int, int]:
    """Height and width of a picture of ``shape`` [..., H, W] resized to ``size``.

    A square of two edges stretches; ``shortest_edge`` and ``max_height`` with ``max_width`` keep the proportions.
    """
    height, width = shape[-2:]
    if "shortest_edge" in size and "longest_edge" in size:
        edges = _within(height, width, size["shortest_edge"], size["longest_edge"])
    elif "shortest_edge" in size:
        edges = by_shortest_edge(shape, size["shortest_edge"])
    elif "max_height" in size:
        scale = min(size["max_height"] / height, size["max_width"] / width)
        edges = int(height * scale), int(width * scale)
    elif "height" in size:
        edges = size["height"], size["width"]
    else:
        raise PosexportError(
            f"size has {' and '.join(size)}, which this processor does not resize by; give height and width, "
            "shortest_edge, or max_height and max_width"
        )
    if min(edges) < 1:
        raise PosexportError(
            f"a picture of {height} x {width} (height x width) would be resized to {edges[0]} x {edges[1]} by size "
            f"{dict(size)}; cut it to a less extreme shape"
        )
    return edges


def by_shortest_edge(shape: Sequence[int], edge: int) -> tuple[int, int]:
    """Height and width with the proportions of a picture of ``shape`` [..., H, W], its shorter edge being ``edge``."""
    height, width = shape[-2:]
    short, long = min(height, width), max(height, width)
    other = int(edge * long / short)
    return (other, edge) if width <= height else (edge, other)


def _within(height: int, width: int, edge: int, longest: int) -> tuple[int, int]:
    """As `by_shortest_edge`, smaller where the longer edge would be above ``longest``."""
    short, long = float(min(height, width)), float(max(height, width))
    exact: float = edge
    if long / short * edge > longest:
        exact = longest * short / long
        edge = round(exact)
    if min(height, width) == edge:
        return height, width
    if width < height:
        return int(exact * height / width), edge
    return edge, int(exact * width / height)
