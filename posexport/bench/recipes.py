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
from posexport.bench.environments import pins, run

CACHE = Path(".cache/bench")
#: what stands in arguments for the folder to fill
OUT = "{out}"
_EXPORT = "export.json"


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
        parts = [
            self.name,
            self.module,
            *self.arguments,
            self.environment or "",
            _behind(self.module, self.environment),
        ]
        parts += [self.checkpoint.digest] if self.checkpoint else []
        # a factory's file may be the benchmark's own, or the user's
        files = [Path(argument.rpartition(":")[0]) for argument in self.arguments if ".py:" in argument]
        parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.digest}"


@dataclass(frozen=True)
class Export:
    """A recipe's folder, and what making it cost: seconds, and peak memory in bytes.

    ``remark``: what the command said in a line ``remark: ...``.
    """

    folder: Path
    seconds: float
    peak: int | None
    remark: str | None = None


def make(recipe: Recipe, remark: Callable[[str], None] = lambda _: None) -> Export:
    """The recipe's folder, made if it is not there yet. What older code made under the same name is removed.

    Raises:
        FailedError: what the command said.
    """
    folder = recipe.folder
    if (folder / _EXPORT).exists():
        return Export(folder, **json.loads((folder / _EXPORT).read_text()))
    arguments = [argument.replace(OUT, "\0") for argument in recipe.arguments]
    if recipe.checkpoint is not None:
        arguments = [
            a.replace("{checkpoint}", str(make(recipe.checkpoint, remark).folder.absolute())) for a in arguments
        ]
    remark(f"making {recipe.name} in {folder}")
    for old in CACHE.glob(f"{recipe.name}-{'?' * 12}"):
        shutil.rmtree(old)
    unfinished = CACHE / f".{recipe.name}-{secrets.token_hex(4)}"
    unfinished.mkdir(parents=True)
    try:
        out = str(unfinished.absolute())
        ended = run(recipe.environment, recipe.module, [a.replace("\0", out) for a in arguments])
        lines = [line.removeprefix("remark: ") for line in ended.output.splitlines() if line.startswith("remark: ")]
        sentence = "; ".join(lines) or None
        (unfinished / _EXPORT).write_text(
            json.dumps({"seconds": ended.seconds, "peak": ended.peak, "remark": sentence})
        )
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Export(folder, ended.seconds, ended.peak, sentence)


def _behind(module: str, environment: str | None) -> str:
    """What stands behind a command: all of our code, or an exporter's pinned versions and the scripts that call it."""
    script = Path(__file__).resolve().parents[2].joinpath(*module.split(".")).with_suffix(".py")
    scripts = sorted(script.parent.glob("*.py")) if script.parent.name == "exporters" else [script]
    files = [pins(environment), *scripts]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in files if p.exists())).hexdigest()
    return digest + code() if environment is None and module != "posexport.bench.checkpoints" else digest


@functools.cache
def code() -> str:
    """sha256 of this package's source, the benchmark's own apart."""
    root = Path(posexport.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for folder in (root, root / "models") for path in folder.rglob("*.py")):
        if "bench" not in path.relative_to(root).parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()
