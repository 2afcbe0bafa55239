"""What activations are measured on before a graph is quantized."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posexport.conversion.options import ConvertOptions

if TYPE_CHECKING:
    from posexport.parity.grid.inputs import Feeds
    from posexport.precision.calibration import Calibration
    from posexport.sources.source import Source


def calibration_texts(source: "Source", options: ConvertOptions) -> "tuple[ConvertOptions, list[Feeds]]":
    """The texts of ``--calibrate`` as the source's inputs, and options that record their sha256."""
    if options.calibrate is None or not options.precision.reads_texts:
        return options, []
    from posexport.parity.agreement.texts import calibration_feeds

    graphs = list(source.graphs.values())  # one, under a name of its layout's, has no parts itself
    feeds = calibration_feeds(graphs[0] if len(graphs) == 1 else source, options.calibrate)
    sha256 = hashlib.sha256(options.calibrate.read_bytes()).hexdigest()
    precision = msgspec.structs.replace(options.precision, calibration=sha256)
    return replace(options, precision=precision), feeds


def calibration(graph: "Source", options: ConvertOptions, texts: "list[Feeds]") -> "Calibration | None":
    """What activations of ``graph`` are measured on: texts, or for int8 random tokens where it reads tokens alone."""
    if not options.precision.reads_texts:
        return None
    from posexport.parity.agreement.random_rows import random_rows
    from posexport.precision.calibration import Calibration
    from posexport.runtime.providers import make_session

    def open_graph(path: Path) -> Any:
        return make_session(path, threads=options.threads).run

    feeds = texts or random_rows(graph, graph.envelope)
    return Calibration(feeds, open_graph) if feeds else None
