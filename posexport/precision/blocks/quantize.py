"""The pass: weights of linear projections in blocks of 4 or 8 bits, word embeddings and what gives logits at 8."""

from dataclasses import replace

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.blocks.packing import Scheme
from posexport.precision.blocks.products import OPERATOR, Products, replacement
from posexport.precision.blocks.second_order import factors
from posexport.precision.blocks.tables import quantize_tied
from posexport.precision.calibration import Calibration
from posexport.precision.chosen import Chosen, choose
from posexport.precision.derived import DerivedTensors
from posexport.precision.imports import import_microsoft
from posexport.precision.result import PrecisionResult
from posexport.precision.rows import embeddings
from posexport.precision.worth import Replacement
from posexport.spec import Interface
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.target import BLOCKED_OPSET, Target


def quantize_blocks(
    model: ir.Model,
    interface: Interface,
    target: Target,
    options: PrecisionOptions,
    calibration: Calibration | None = None,
) -> PrecisionResult:
    """Change ``model`` in place; answers the classes of tensors with what they are stored in.

    ``calibration``: texts, for the quantizer that rounds by what weights are multiplied by.

    After all graph passes and before a pass to half precision, which finds float scales and float activations.

    Raises:
        PosexportError: the opset is below that of blocks.
    """
    if not target.may_use(OPERATOR) and target.opset < BLOCKED_OPSET:
        raise PosexportError(
            f"--precision {options.precision} for any runtime stores weights in blocks, which need --opset "
            f"{BLOCKED_OPSET} or higher; got {target.opset}"
        )
    bits = options.weight_bits or 8
    linear, head = Scheme(bits, options.block_size, options.quantizer), Scheme(8, options.block_size)

    def replacement_of(logits: set[ir.Value]) -> Replacement:
        return replacement(target, lambda each: head if each.weight.value in logits else linear)

    chosen = choose(model, interface, options, replacement_of)
    tensors = DerivedTensors(model)
    products = Products(model, tensors, target)
    tied = {each.weight.value for each in chosen.projections} & chosen.tied
    bodies = [each for each in chosen.projections if each.weight.value not in chosen.logits]
    of_weights = {} if calibration is None else factors(model, bodies, calibration)
    for projection in chosen.projections:
        scheme = replace(linear, factor=of_weights.get(projection.weight.value))
        products.replace(projection, head if projection.weight.value in chosen.logits else scheme)
    for lookup in chosen.tables:
        if lookup.table.value in tied:
            quantize_tied(lookup, tensors, head, fused=target.may_use(OPERATOR))
        else:
            embeddings.quantize(lookup, tensors)
    import_microsoft(model)
    tensors.finish()
    without = 0 if calibration is None else sum(each.weight.value not in of_weights for each in bodies)
    classes = _classes(chosen, linear, len(bodies), len(tied), without)
    return chosen.result(classes, bits, head.bits)


def _classes(chosen: Chosen, linear: Scheme, bodies: int, tied: int, without: int) -> dict[str, str]:
    """``without``: projections whose inputs were not observed, in functions and branches: rounded to nearest."""
    stored = {}
    blocks = f"in blocks of {linear.size}"
    if bodies:
        kept = f", {without} of them rtn" if without else ""
        stored["linear weights"] = f"int{linear.bits} {blocks}, {linear.quantizer}{kept}"
    if len(chosen.projections) > bodies:
        stored["projections to logits"] = f"int8 {blocks}"
    if chosen.tables:
        scales = f"int8 {blocks}, stored once with the head" if tied else "int8 with a scale for each row"
        stored["word embeddings"] = scales
    return stored
