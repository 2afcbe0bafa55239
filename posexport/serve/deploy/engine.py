"""The record of an engine for `posexport deploy`: the files that it needs and their values."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posexport.base.registry import Registry
from posexport.base.targets.providers import provider_named
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.serve.engines.fit import embeds_texts


@dataclasses.dataclass(frozen=True)
class Deployment:
    """The arguments of `posexport deploy`.

    Attributes:
        bundle: the bundle's folder.
        manifest: the bundle's manifest.
        name: the model's name in the engine.
        link: the files refer to ``bundle`` by its path, in place of a copy.
        provider: the execution provider.
        workers: the number of processes that compute.
        provider_options: options of the sessions, as in `posexport.load`.
    """

    bundle: Path
    manifest: Manifest
    name: str
    link: bool
    provider: str
    workers: int
    provider_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def at(self) -> str:
        """The bundle's path in the files: relative for a copy, absolute for a link."""
        return str(self.bundle.absolute()) if self.link else "bundle"

    @property
    def label(self) -> str:
        """The name for Docker and Kubernetes: at most 40 lowercase letters, digits, hyphens, a letter first."""
        label = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return (label if label[:1].isalpha() else f"model-{label}")[:40].rstrip("-")

    @property
    def runtime(self) -> str:
        """The extra, or the package, with the provider's ONNX Runtime."""
        return provider_named(self.provider).extra or provider_named(self.provider).package

    def install(self, engine: "Engine") -> str:
        """The command that installs an engine; empty if pip does not install it."""
        return f"pip install --find-links wheels 'posexport[{engine.extra},{self.runtime}]'" if engine.extra else ""

    def command(self, engine: "Engine") -> str:
        """The command that runs the engine in its folder."""
        return engine.command.replace("NAME", self.label)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """A serving or batch engine.

    Attributes:
        name: what ``--to`` accepts.
        what: one line for the command's help.
        command: the command that runs it in its folder; ``NAME`` is the model's name.
        extra: the extra of posexport that installs it; empty: it is no Python package.
        shares: names of engines with templates that are rendered too, unless this one has a file of that name.
        takes_options: its sessions are posexport's, with options of the provider.
        links: the bundle may stay where it is (``--link``).
        check: raises PosexportError for a bundle that the engine cannot run.
        values: values for its templates, added to those for all engines (`posexport.serve.deploy.write`).
        write: writes files that are no templates into the folder; default: a copy of the bundle.
        package: the package with its templates, in ``templates/NAME``.
    """

    name: str
    what: str
    command: str
    extra: str = ""
    shares: tuple[str, ...] = ()
    takes_options: bool = True
    links: bool = True
    check: Callable[[Deployment], None] = lambda _: None
    values: Callable[[Deployment], Mapping[str, Any]] = lambda _: {}
    write: Callable[[Deployment, Path], None] | None = None
    package: str = "posexport.serve.deploy"


#: the engines by name; a package adds one by an entry point of the group ``posexport.engines``
ENGINES: Registry[Engine] = Registry(
    "engines",
    Engine,
    {
        "ray-data": "posexport.serve.deploy.engine:RAY_DATA",
        "ray-serve": "posexport.serve.deploy.engine:RAY_SERVE",
        "mlserver": "posexport.serve.deploy.engine:MLSERVER",
        "triton": "posexport.serve.deploy.triton:TRITON",
        "docker": "posexport.serve.deploy.engine:DOCKER",
    },
)


def _embeds(deployment: Deployment) -> dict[str, object]:
    return {"embeds": embeds_texts(deployment.manifest)}


def _check_embeds(deployment: Deployment) -> None:
    """Raises PosexportError for a bundle without vectors of texts, which is what the job of ray-data writes."""
    if not embeds_texts(deployment.manifest):
        raise PosexportError(
            f"{deployment.bundle} is for {deployment.manifest.task} and makes no vectors of texts, which the job of "
            "ray-data does; deploy it to ray-serve, mlserver or triton, or convert an embedder"
        )


RAY_DATA = Engine(
    name="ray-data",
    what="a batch job in Ray Data: parquet or JSON Lines of texts in, vectors out, resumable",
    command="python job.py texts.parquet vectors",
    extra="ray",
    check=_check_embeds,
)
RAY_SERVE = Engine(
    name="ray-serve",
    what="an HTTP service in Ray Serve: replicas, batches by tokens, health checks",
    command="serve run serve.yaml",
    extra="ray",
    values=_embeds,
)
MLSERVER = Engine(
    name="mlserver",
    what="MLServer (Open Inference Protocol v2, REST and gRPC), and the same in Kubernetes by KServe",
    command="mlserver start .",
    extra="mlserver",
    values=_embeds,
)
DOCKER = Engine(
    name="docker",
    what="an image without PyTorch: MLServer, not root, read-only",
    command="docker build -t NAME:1 .",
    shares=("mlserver",),
    links=False,
)
