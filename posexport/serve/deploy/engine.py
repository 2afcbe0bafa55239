"""What an engine is to `posexport deploy`: which files it needs and what stands in them."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posexport.bundle.manifest import Manifest
from posexport.registry import Registry
from posexport.targets.providers import provider_named


@dataclasses.dataclass(frozen=True)
class Deployment:
    """One call of `posexport deploy`.

    Attributes:
        bundle: the bundle's folder.
        manifest: its manifest.
        name: what the model is called in the engine.
        link: the files name ``bundle`` where it is, in place of a copy.
        provider: the execution provider that serves it.
        workers: processes that compute.
        provider_options: of its sessions, as `posexport.load` takes them.
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
        """Where the files find the bundle: beside them, or its own path."""
        return str(self.bundle.absolute()) if self.link else "bundle"

    @property
    def label(self) -> str:
        """The name as Docker and Kubernetes take it: at most 40 small letters, digits, hyphens, a letter first."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return (plain if plain[:1].isalpha() else f"model-{plain}")[:40].rstrip("-")

    @property
    def runtime(self) -> str:
        """The extra with the ONNX Runtime of the provider."""
        return provider_named(self.provider).extra or provider_named(self.provider).package

    def install(self, engine: "Engine") -> str:
        """The exact line that installs an engine; empty where pip does not."""
        return f"pip install --find-links wheels 'posexport[{engine.extra},{self.runtime}]'" if engine.extra else ""

    def command(self, engine: "Engine") -> str:
        """What runs it, from within its folder."""
        return engine.command.replace("NAME", self.label)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine.

    Attributes:
        name: what ``--to`` accepts; its templates are in the folder of that name, and of those in ``shares``.
        what: one line for the command's help.
        command: what runs it, from within its folder; ``NAME`` is the model's.
        extra: the extra of posexport that installs it; empty: it is no Python package.
        shares: engines whose templates it takes too; its own replace theirs.
        takes_options: its sessions are posexport's, which take options of the provider.
        links: the bundle may stay where it is (``--link``).
        check: raises PosexportError for a bundle that the engine cannot run.
        values: of the templates, beside those of every engine (`posexport.serve.deploy.write`).
        write: what it writes into the folder beside its templates; default: a copy of the bundle.
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
        "ray-data": "posexport.serve.deploy.engines:RAY_DATA",
        "ray-serve": "posexport.serve.deploy.engines:RAY_SERVE",
        "mlserver": "posexport.serve.deploy.engines:MLSERVER",
        "triton": "posexport.serve.deploy.triton:TRITON",
        "docker": "posexport.serve.deploy.engines:DOCKER",
    },
)
