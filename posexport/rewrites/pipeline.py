"""All rewrites, in the order in which they are applied."""

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.errors import PosexportError
from posexport.rewrites.activations import BiasGelu, Gelu, Swish
from posexport.rewrites.packing import Packing
from posexport.rewrites.rewrite import Rewrite
from posexport.rewrites.rms import RmsNorm
from posexport.rewrites.rows import Rows
from posexport.rewrites.skip import SkipNorm
from posexport.targets.target import MICROSOFT, Target

#: normalisations and activations first, as later ones look for them; packing before what turns products to Gemm
REWRITES: tuple[Rewrite, ...] = (Gelu(), Swish(), RmsNorm(), Packing(), Rows(), SkipNorm(), BiasGelu())


def apply(model: ir.Model, target: Target, wanted: Collection[str] | None = None) -> dict[str, int]:
    """Rewrite ``model`` in place for ``target``: name of each rewrite that was tried -> in how many places.

    ``wanted``: these and no others; by default all that do not refuse and are not beaten by leaving them out. To be
    called on a traced graph, before guards and functions are put in.

    Raises:
        PosexportError: a name in ``wanted`` is unknown, or that rewrite refuses the target.
    """
    known = {rewrite.name: rewrite for rewrite in REWRITES}
    for name in wanted or ():
        if name not in known:
            raise PosexportError(f"unknown rewrite {name!r}; known: {', '.join(known)}")
        reason = known[name].refusal(target)
        if reason:
            raise PosexportError(f"rewrite {name} does not apply: {reason}; leave it out")
    done = {}
    for name, rewrite in known.items():
        chosen = name in wanted if wanted is not None else not (rewrite.refusal(target) or rewrite.beaten(target))
        if chosen:
            done[name] = rewrite.apply(model, target)
    if any(done.values()):
        RemoveUnusedNodesPass()(model)
        _name_nodes(model)
    if any(node.domain == MICROSOFT for node in model.graph):
        model.opset_imports.setdefault(MICROSOFT, 1)
    return done


def reasons(target: Target) -> dict[str, str]:
    """Every rewrite that ``apply`` leaves out for ``target`` -> why."""
    found = {rewrite.name: rewrite.refusal(target) or rewrite.beaten(target) for rewrite in REWRITES}
    return {name: reason for name, reason in found.items() if reason}


def _name_nodes(model: ir.Model) -> None:
    """A name for every node that has none: after its first output."""
    taken = {node.name for node in model.graph}
    for node in model.graph:
        if not node.name:
            name = f"{node.op_type}_{node.outputs[0].name}"
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
