"""What bringing graphs to their precision did."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from posexport.errors import PosexportError
from posexport.targets.precision_options import PrecisionOptions


@dataclass(frozen=True)
class PrecisionResult:
    """What a graph's tensors are stored in now.

    Attributes:
        classes: class of tensors, such as ``linear weights`` -> their precision in words.
        names: of all weights of linear projections and word embeddings, by which ``--keep-float`` knows them.
        quantized: how many of them were.
        projections: how many linear projections have weights of which type: ``int4``, ``int8``, ``float``.
        larger: how many are in float because quantized they would take more bytes, nodes included.
        remarks: sentences for the user.
    """

    classes: dict[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    quantized: int = 0
    projections: Mapping[str, int] = field(default_factory=dict)
    larger: int = 0
    remarks: tuple[str, ...] = ()


def check_quantized(options: PrecisionOptions, graphs: Sequence[PrecisionResult]) -> None:
    """PosexportError where a pattern of ``--keep-float`` matches nothing in any graph, or nothing was quantized."""
    if not options.quantized:
        return
    names = sorted({name for each in graphs for name in each.names})
    for pattern in options.keep_float:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PosexportError(
                f"--keep-float {pattern!r} matches none of {len(names)} weights; give a glob pattern of their names, "
                f"such as {_some(names)}"
            )
    if any(each.quantized or each.larger for each in graphs):
        return
    if options.keep_float:
        patterns = " ".join(f"--keep-float {pattern!r}" for pattern in options.keep_float)
        raise PosexportError(
            f"{patterns} leaves none of {len(names)} weights to quantize with --precision {options.precision}; give "
            f"patterns that match fewer of them, such as {_some(names)}"
        )
    raise PosexportError(
        f"--precision {options.precision} finds no weight to quantize: the model has no linear projection of 16 "
        "channels or more and no word embeddings of 256 rows or more; leave it out, or give --precision fp16"
    )


def larger(graphs: Sequence[PrecisionResult]) -> str:
    """How many projections stay in float because they would grow, of all graphs; empty: none."""
    count, total = (sum(each) for each in zip(*((g.larger, sum(g.projections.values())) for g in graphs), strict=True))
    what = "quantized, their weights with the scales and nodes that they need would be larger than now"
    return f"{count} of {total} linear projections stay in float: {what}" if count else ""


def _some(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:3])
