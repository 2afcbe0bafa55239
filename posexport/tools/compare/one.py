"""One encoding from its constructor to its accuracies: the work of a training process."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.options.recipe import Recipe
from posexport.tools.compare.records import AtPrecision, Result, Setup, at_precision

if TYPE_CHECKING:
    from posexport.sources.source import Source
    from posexport.targets.precisions import PrecisionName


def one(encoding: str, setup: Setup, path: Path) -> Result:
    """Train the encoding's model, export it to ``path``, ask it on ONNX Runtime.

    Raises:
        PosexportError: it cannot be trained or exported.
    """
    from posexport.export import negotiate
    from posexport.export.build import build
    from posexport.sources import weights
    from posexport.sources.of_definition import source_of
    from posexport.tools.compare.accuracy import accuracies
    from posexport.tools.compare.train import TASK, make, own_parameters, train

    start = time.perf_counter()
    model = make(encoding, setup)
    loss = train(model, setup)
    source = source_of(model, name=f"encoder-{encoding}", kind="builtin", task=TASK, sha256=weights.digest(model))
    build(source, path, Recipe(task=TASK, opset=negotiate.DEFAULT_OPSET))
    limit = source.limits.max_length
    return Result(
        encoding=encoding,
        limit=limit,
        parameters=sum(p.numel() for p in model.parameters()),
        own_parameters=sum(p.numel() for p in own_parameters(model)),
        file_bytes=path.stat().st_size,
        loss=loss,
        accuracy=accuracies(path, setup, limit),
        seconds=time.perf_counter() - start,
        precisions={name: _at(name, source, path, setup) for name in setup.precisions},
    )


def _at(precision: "PrecisionName", source: "Source", float32: Path, setup: Setup) -> AtPrecision:
    """The trained model in another precision, beside the one in float32."""
    from posexport.export import negotiate
    from posexport.export.build import build
    from posexport.tools.compare.accuracy import accuracies, agreement

    path = at_precision(float32, precision)
    build(source, path, Recipe(task=source.task, opset=negotiate.DEFAULT_OPSET, precision=precision))
    return AtPrecision(
        file_bytes=path.stat().st_size,
        accuracy=accuracies(path, setup, source.limits.max_length),
        cosine=agreement(path, float32, setup),
    )
