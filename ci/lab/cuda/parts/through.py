"""Checkpoints of ``ci/through`` converted for CUDA as users do, with the whole proof on the card: states, experts."""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

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
    return {"passed": result.good, "note": "" if result.good else result.verdict}


STATES, DECODERS = (
    Part(group, f"{group} of ci/through, default conversions for CUDA", partial(cases, group), run)
    for group in ("states", "decoders")
)
