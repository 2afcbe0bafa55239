"""One graph of an audit, with the analyses of it that rules and calls share."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from posexport.base.targets.listed import audited
from posexport.graph.queries import bodies
from posexport.inspect.audit.analyses.attention import Attention, attentions
from posexport.inspect.audit.analyses.conflicts import Conflict, conflicts
from posexport.inspect.audit.analyses.described import described
from posexport.inspect.audit.analyses.kernels import Missing, missing_kernels
from posexport.inspect.audit.analyses.reshapes import FixedReshape, fixed_reshapes
from posexport.inspect.audit.analyses.roles import Roles
from posexport.inspect.audit.analyses.sizes import Sizes
from posexport.inspect.audit.reading.bundle import bundle_of
from posexport.inspect.audit.reading.folder import Folder
from posexport.inspect.audit.reading.read import read_model

if TYPE_CHECKING:
    from posexport.run.bundle.manifest import Manifest


class AuditedGraph:
    """A graph as the file alone describes it. Rules only read it; repairs change it and refresh the analyses.

    Attributes:
        path: the file.
        model: the graph with local functions inlined; large weights are mapped from disk when they are read.
        files: config.json and other files of the graph's repository.
        provider: the execution provider that the file is for, one of posexport's names.
    """

    def __init__(self, path: Path, *, provider: str = "cpu") -> None:
        self.path, self.provider = path, provider
        self.files = Folder(path)
        self.model = read_model(path)
        self.sizes = Sizes(self.model)

    @property
    def graph(self) -> ir.Graph:
        return self.model.graph

    @property
    def by_posexport(self) -> bool:
        """Whether the file is a bundle's graph, by its metadata."""
        return any(name.startswith("posexport.") for name in self.model.metadata_props)

    @cached_property
    def bundle(self) -> "Manifest | None":
        """The manifest of posexport in the file's folder, if it lists this file with its hash."""
        return bundle_of(self.path, self.files)

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """All nodes in the file's order, including those of subgraphs."""
        return list(self.model.graph.all_nodes())

    @cached_property
    def unconditional(self) -> list[ir.Node]:
        """Nodes that every call runs: a branch may be for one size."""
        return list(_unconditional(self.model.graph))

    @cached_property
    def roles(self) -> Roles:
        """What the inputs are: token ids, masks, positions, caches."""
        return Roles(self.graph)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The settings of config.json for this graph's text model; empty if it has none."""
        return described(self.graph, self.roles, self.files)

    @cached_property
    def attentions(self) -> list[Attention]:
        """Every attention of the graph, fused or of several nodes."""
        return attentions(self.nodes)

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Places where a dynamic axis is combined with a constant size."""
        return list(conflicts(self.unconditional, self.sizes))

    @cached_property
    def fixed_reshapes(self) -> list[FixedReshape]:
        """Reshapes to constant shapes that fit one size only."""
        return list(fixed_reshapes(self.unconditional, self.sizes))

    def refresh(self) -> None:
        """Look at the graph again after a repair changed it."""
        for name in ("nodes", "unconditional", "attentions", "conflicts", "fixed_reshapes"):
            self.__dict__.pop(name, None)
        self.sizes.infer()

    @cached_property
    def missing_kernels(self) -> list[Missing]:
        """Nodes that the provider has no kernel for."""
        return list(missing_kernels(self.nodes, self.model.opset_imports, audited()[self.provider].ort_name))

    def opset(self, domain: str = "") -> int:
        """The version of a domain that the file imports; 1 if it does not say."""
        return self.model.opset_imports.get(domain, 1)


def _unconditional(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        yield node
        for body in bodies(node).values() if node.op_type != "If" else ():
            yield from _unconditional(body)
