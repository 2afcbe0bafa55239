"""The graphs of a source in a folder, of a conversion and of the reduced model that it is proven by."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posexport.base.options.recipe import Recipe
    from posexport.conversion.export.build import Built
    from posexport.conversion.export.layout import Layout
    from posexport.graph.precision.calibration import Calibration
    from posexport.proof.grid.inputs import Feeds
    from posexport.sources.source import Source

#: the folder, while a conversion is under way, of the graphs that quantized ones are made from and compared with; it is
#: not sealed
FLOAT32 = ".float32"


def calibration_texts(source: "Source", path: Any) -> "list[Feeds]":
    """The texts of ``--calibrate`` as the source's inputs; none without a path."""
    if path is None:
        return []
    from posexport.proof.agreement.texts import calibration_feeds

    graphs = list(source.graphs.values())  # one, under a name of its layout's, has no parts itself
    return calibration_feeds(graphs[0] if len(graphs) == 1 else source, Path(path))


@dataclass(frozen=True)
class Export:
    """Writes the graphs of a source as a recipe says; ``texts``: what activations are measured on."""

    recipe: "Recipe"
    layout: "Layout"
    texts: "list[Feeds]"
    threads: int = 0

    def __call__(self, source: "Source", directory: Path, *, with_float32: bool = False) -> "list[Built]":
        """The files in ``directory``; ``with_float32``: also what quantized ones are made from, in `FLOAT32`."""
        from posexport.conversion.export.build import build
        from posexport.conversion.export.by_layers.trace import few_layers

        few = few_layers(source)
        store = self.layout.store(source)
        return [
            build(
                graph,
                directory / file,
                self.recipe,
                few=few.get(file),
                layout=self.layout,
                store=store,
                float32=directory / FLOAT32 / file if with_float32 else None,
                calibration=self._calibration(graph),
            )
            for file, graph in source.graphs.items()
        ]

    def _calibration(self, graph: "Source") -> "Calibration | None":
        """What activations are measured on: texts, or for int8 random tokens where ``graph`` reads tokens alone."""
        if not self.recipe.reads_texts:
            return None
        from posexport.graph.precision.calibration import Calibration
        from posexport.proof.agreement.texts import random_rows
        from posexport.run.providers import make_session
        from posexport.run.static_session import StaticSession

        def open_graph(path: Path) -> Any:
            return make_session(path, threads=self.threads).run

        feeds = self.texts or random_rows(graph, graph.limits)
        if not feeds:
            return None
        sizes = self.recipe.static_sizes or {}
        if not sizes:
            return Calibration(feeds, open_graph)
        fixed = StaticSession(None, sizes, graph.inputs, graph.outputs)
        mask = next((spec.name for spec in graph.inputs if spec.role == "mask"), "")
        return Calibration([call for given in feeds for call in fixed.calls(given)], open_graph, mask)
