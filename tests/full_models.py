"""Tiny models of many layers, their reduced models, and the graphs of both."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from posexport.base.options.recipe import Recipe
from posexport.conversion.export.build import build
from posexport.graph.precision.calibration import Calibration
from posexport.proof.agreement.texts import random_rows
from posexport.proof.full_model.check import Layers, check
from posexport.proof.full_model.records import Stack
from posexport.proof.full_model.weights import Words
from posexport.run.providers import make_session
from posexport.sources.builtin import builtin_source
from posexport.sources.lazy_parameters import lazy, narrow
from posexport.sources.source import Source

LAYERS, KEPT = 10, (0, 1, 9)
#: both heads are above the size up to which the exporter folds constants
WORDS = Words(1100, 700)
SIZES = ("hidden=40", "heads=5", "feedforward=56", "max_positions=32")


@dataclass(frozen=True)
class Pair:
    """A full and a reduced model with their graphs."""

    full: Source
    reduced: Source
    path: Path
    reduced_path: Path
    stack: str

    def check(self, path: Path | None = None) -> Layers:
        return check(
            path or self.path,
            self.reduced_path,
            {self.stack: Stack(["same"] * LAYERS, KEPT)},
            parameters(self.full),
            parameters(self.reduced),
            inputs=self.full.inputs,
            words=WORDS,
            quantizer="rtn",
        )


def parameters(source: Source) -> dict[str, nn.Parameter]:
    return dict(source.module.named_parameters(remove_duplicate=False))


def narrowed(source: Source, dtype: torch.dtype) -> None:
    """Replace large parameters, which ``dtype`` holds, by those that a proof reads from a checkpoint in ``dtype``."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in source.module.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim > 1:
                pages = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
                found = lazy(parameter.shape, parameter.detach().clone, pages)
                assert found is not None
                made.setdefault(parameter, found)
                setattr(module, leaf, made[parameter])
    narrow(made.values())


def pair(name: str, folder: Path, dtype: torch.dtype = torch.float32, **options: str) -> Pair:
    """The graphs of a built-in model with numbers of ``dtype``, with these options of a recipe."""
    full, reduced = (
        builtin_source(name, task=None, settings_given=(*SIZES, f"layers={layers}", f"vocab={words}"))
        for layers, words in ((LAYERS, WORDS.full), (len(KEPT), WORDS.reduced))
    )
    stack = next(path for path, module in full.module.named_modules() if isinstance(module, torch.nn.ModuleList))
    known = parameters(full)
    with torch.no_grad():
        for parameter_name, parameter in known.items():
            torch.manual_seed(sum(map(ord, parameter_name)))
            parameter += 0.05 * torch.randn_like(parameter)
            if "norm" in parameter_name and any(f".{layer}." in parameter_name for layer in (3, 7)):
                parameter[::9] *= 40  # channels that int8 smooths, which no layer of the reduced model has
            parameter.copy_(parameter.to(dtype))
        for parameter_name, parameter in parameters(reduced).items():
            number = parameter_name.removeprefix(f"{stack}.").partition(".")[0]
            of_full = (
                parameter_name.replace(f"{stack}.{number}.", f"{stack}.{KEPT[int(number)]}.")
                if (parameter_name.startswith(f"{stack}."))
                else parameter_name
            )
            parameter.copy_(known[of_full][: len(parameter)])
    recipe = Recipe(task=full.task, opset=24, **options)
    for source, path in ((full, folder / "full.onnx"), (reduced, folder / "reduced.onnx")):
        calibration = Calibration(random_rows(source, source.limits), lambda graph: make_session(graph).run)
        build(source, path, recipe, calibration=calibration if recipe.reads_texts else None)
    if dtype != torch.float32:
        narrowed(full, dtype)
    return Pair(full, reduced, folder / "full.onnx", folder / "reduced.onnx", stack)
