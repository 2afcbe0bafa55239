"""What activations are measured on before a graph is quantized."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexport.conversion.options import ConvertOptions

if TYPE_CHECKING:
    from posexport.parity.grid.inputs import Feeds
    from posexport.precision.calibration import Calibration
    from posexport.sources.source import Source


def calibration_texts(source: "Source", options: ConvertOptions) -> "list[Feeds]":
    """The texts of ``--calibrate`` as the source's inputs."""
    if options.calibrate is None or not options.reads_texts:
        return []
    from posexport.parity.agreement.texts import calibration_feeds

    graphs = list(source.graphs.values())  # one, under a name of its layout's, has no parts itself
    return calibration_feeds(graphs[0] if len(graphs) == 1 else source, Path(options.calibrate))


def calibration(graph: "Source", options: ConvertOptions, texts: "list[Feeds]") -> "Calibration | None":
    """What activations of ``graph`` are measured on: texts, or for int8 random tokens where it reads tokens alone."""
    if not options.reads_texts:
        return None
    from posexport.parity.agreement.texts import random_rows
    from posexport.precision.calibration import Calibration
    from posexport.runtime.providers import make_session

    def open_graph(path: Path) -> Any:
        return make_session(path, threads=options.threads).run

    feeds = texts or random_rows(graph, graph.limits)
    return Calibration(feeds, open_graph) if feeds else None
