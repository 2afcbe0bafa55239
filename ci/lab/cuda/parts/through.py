"""Checkpoints of ``ci/through`` converted for CUDA as users do, with the whole proof on the card: states, experts."""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from part import Part, Row, Setup

_THROUGH = str(Path(__file__).parents[3] / "through")
if _THROUGH not in sys.path:
    sys.path.append(_THROUGH)


def cases(group: str, setup: Setup) -> list[str]:
    """The checkpoints of a group, in float32 and then in float16."""
    from tiny import groups, table

    entries = table()
    names = [name for name in groups()[group] if not entries[name].keys() & {"live", "refused"}]
    return setup.few([f"{name} {p}" for p in ("fp32", "fp16") for name in names], "lfm2 fp32", "mixtral fp32")


def run(name: str, setup: Setup) -> Row:
    """Convert one and prove it; one that this machine's transformers does not have is told so."""
    import transformers
    from tiny import make, table

    import posexport

    name, precision = name.split()
    entry = table()[name]
    if not hasattr(transformers, entry["class"]):
        return {"passed": True, "note": f"transformers {transformers.__version__} does not have it"}
    transformers.logging.set_verbosity_error()
    with TemporaryDirectory(prefix="posexport-gpu-") as folder:
        source, bundle = Path(folder, name), Path(folder, "bundle")
        make(source, entry)
        try:
            result = posexport.convert(
                str(source),
                bundle,
                target=setup.target(precision),
                precision=precision,
                provider=setup.provider,
                definition="transformers" if entry.get("through") else "paper",
            )
        except posexport.PosexportError as err:
            return {"passed": False, "note": f"refused: {str(err).replace(folder, '')}"}
    if result.good or result.report is None:
        return {"passed": result.good, "note": "" if result.good else result.verdict}
    return {"passed": False, "note": result.report.describe(), "missed": missed(result.report)}


def missed(report: Any) -> list[str]:
    """The first of each kind that failed."""
    wrong = [item for item in report.invariants if item.verdict == "fail"]
    kinds = [
        [f"{p.where} {p.output}: {p.error} of {p.tolerance} {p.note}" for p in report.points if p.verdict == "fail"],
        [f"{item.name} ({item.length} {item.output}): {item.note}" for item in wrong],
        [f"{m.output} over {m.where}: {m.describe()}" for m in report.medians if m.verdict == "fail"],
        list(report.wrong_provider),
    ]
    return [each for kind in kinds for each in [f"{len(kind)} of a kind", *kind[:4]] if kind]


STATES, DECODERS = (
    Part(group, f"{group} of ci/through, default conversions for CUDA", partial(cases, group), run, limit=240)
    for group in ("states", "decoders")
)
