"""How a candidate's files are made, once: in a folder of ``.cache/bench`` that is named by what made it."""

import functools
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import posexport
from posexport.inspect.bench.processes import FailedError, run

ROOT = Path(__file__).parents[3]
CACHE, ENVIRONMENTS = Path(".cache/bench"), Path(".cache/rivals")
#: what stands in arguments for the folder to fill
OUT = "{out}"
_EXPORT = "export.json"


def python_of(environment: str | None) -> str | None:
    """The interpreter of a third-party exporter's environment; None: this one.

    Raises:
        FailedError: the environment is not there.
    """
    if environment is None:
        return None
    path = ENVIRONMENTS / environment
    if not (path / "installed").exists():
        raise FailedError(f"its environment {path} is not there; make it with ci/lab/rivals/setup {environment}")
    return str((path / "bin" / "python").absolute())


def pinned(environment: str) -> dict[str, str]:
    """Versions of an environment's packages by name."""
    lines = (ROOT / "ci" / "lab" / "rivals" / f"{environment}.txt").read_text().splitlines()
    pairs = (line.partition("#")[0].split("==") for line in lines if "==" in line.partition("#")[0])
    return {name.strip(): version.strip() for name, version in pairs}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A command that fills a folder. ``checkpoint``: the one whose folder stands for ``{checkpoint}`` in arguments."""

    name: str
    module: str
    arguments: tuple[str, ...]
    environment: str | None = None
    checkpoint: "Recipe | None" = None

    @property
    def digest(self) -> str:
        """Of all that decides the folder's content: the command, the code behind it, versions."""
        parts = [self.name, self.module, *self.arguments]
        parts += [json.dumps(pinned(self.environment)) if self.environment else _code(ROOT / "posexport")]
        parts += [_code(ROOT / "ci" / "lab" / "rivals" / "exporters")]
        parts += [Path(__file__).with_name(name).read_text() for name in ("attention.py", "checkpoints.py")]
        parts += [self.checkpoint.digest] if self.checkpoint else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.digest}"


@dataclass(frozen=True, kw_only=True)
class Made:
    """A recipe's folder, and what making it cost; ``remark``: what the command said in a line ``remark: ...``."""

    folder: Path
    seconds: float
    peak: int | None
    remark: str | None = None


def make(recipe: Recipe, remark: Callable[[str], None] = lambda _: None) -> Made:
    """The recipe's folder, made if it is not there yet. What older code made under the same name is removed.

    Raises:
        FailedError: what the command said.
    """
    folder = recipe.folder
    if (folder / _EXPORT).exists():
        return Made(folder=folder, **json.loads((folder / _EXPORT).read_text()))
    arguments = list(recipe.arguments)
    if recipe.checkpoint is not None:
        checkpoint = str(make(recipe.checkpoint, remark).folder.absolute())
        arguments = [argument.replace("{checkpoint}", checkpoint) for argument in arguments]
    remark(f"making {recipe.name} in {folder}")
    for old in CACHE.glob(f"{recipe.name}-{'?' * 12}"):
        shutil.rmtree(old)
    unfinished = CACHE / f".{recipe.name}-{secrets.token_hex(4)}"
    unfinished.mkdir(parents=True)
    try:
        arguments = [argument.replace(OUT, str(unfinished.absolute())) for argument in arguments]
        ended = run(recipe.module, arguments, python=python_of(recipe.environment))
        said = [line.removeprefix("remark: ") for line in ended.output.splitlines() if line.startswith("remark: ")]
        cost = {"seconds": ended.seconds, "peak": ended.peak, "remark": "; ".join(said) or None}
        (unfinished / _EXPORT).write_text(json.dumps(cost))
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Made(folder=folder, **cost)


@functools.cache
def _code(folder: Path) -> str:
    """sha256 of a folder's source, what measures apart."""
    digest = hashlib.sha256(posexport.__version__.encode())
    for path in sorted(path for part in (folder, folder / "models") for path in part.rglob("*.py")):
        if "bench" not in path.relative_to(folder).parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()
