"""Writes the folder of a deployment: renders the templates (jinja2), and moves the folder into place."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posexport.base.targets.providers import DEFAULT_PROVIDER, provider_named
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import MANIFEST, Manifest
from posexport.run.bundle.read import check_hashes, locate, read
from posexport.run.bundle.write import staged
from posexport.serve.deploy.engine import ENGINES, Deployment, Engine
from posexport.serve.engines.fit import check_provider
from posexport.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment

#: the name of the bundle's copy
BUNDLE = "bundle"
_SUFFIX, _PART = ".jinja", ".part"


class Deployed(msgspec.Struct, frozen=True):
    """The result of `posexport deploy`.

    Attributes:
        engine: the engine's name.
        folder: the folder.
        files: names of its files, without the bundle's.
        install: the command that installs the engine; empty if pip does not install it.
        command: the command that runs the engine in the folder.
    """

    engine: str
    folder: str
    files: list[str]
    install: str
    command: str

    def to_text(self) -> str:
        """The files, and the commands that install and run the engine."""
        first = f"  {self.install}\n" if self.install else ""
        return f"{self.folder}: {', '.join(self.files)}\n{first}  cd {shlex.quote(self.folder)} && {self.command}"


def deploy(
    bundle: Path,
    to: str,
    output: Path,
    *,
    name: str | None = None,
    link: bool = False,
    provider: str = DEFAULT_PROVIDER,
    provider_options: Mapping[str, Any] | None = None,
    workers: int = 1,
) -> Deployed:
    """Write the files that run ``bundle`` in the engine ``to``.

    Args:
        bundle: a bundle's folder.
        to: one of `ENGINES`.
        output: the folder to write, which must not exist.
        name: the model's name in the engine; None: the name of the bundle's folder.
        link: refer to the bundle by its path; False: copy it.
        provider: the execution provider.
        provider_options: options of the sessions, as in `posexport.load`.
        workers: the number of processes that compute.

    Raises:
        PosexportError: an unknown engine, no bundle or a damaged one, one for another provider or that the engine
            cannot run, or an existing output.
    """
    engine = ENGINES.get(to)
    if engine is None:
        raise PosexportError(f"unknown engine {to!r}; known: {', '.join(ENGINES.names)}")
    # arguments that do not fit the engine or the bundle
    _check_output(bundle, output)
    manifest = read(bundle)
    check_provider(manifest, provider)
    deployment = Deployment(
        bundle=bundle,
        manifest=manifest,
        name=_name(bundle.absolute().name if name is None else name),
        link=link,
        provider=provider,
        workers=workers,
        provider_options=provider_options or {},
    )
    _check(engine, deployment)
    # the folder, moved into place once it is complete
    with staged(output, force=False) as folder:
        check_hashes(bundle, manifest)
        files = _render(engine, deployment, folder)
        if engine.write is not None:
            engine.write(deployment, folder)
        elif not link:
            copy_bundle(bundle, manifest, folder / BUNDLE)
    return Deployed(
        engine=to,
        folder=str(output),
        files=files,
        install=deployment.install(engine),
        command=deployment.command(engine),
    )


def _check(engine: Engine, deployment: Deployment) -> None:
    _check_options(engine, deployment.provider, deployment.provider_options)
    if deployment.workers < 1:
        raise PosexportError(f"--workers must be at least 1, got {deployment.workers}")
    if deployment.link and not engine.links:
        raise PosexportError(f"{engine.name} needs the bundle's files in its own folder; leave --link out")
    engine.check(deployment)


def _check_options(engine: Engine, provider: str, options: Mapping[str, Any]) -> None:
    if options and not engine.takes_options:
        raise PosexportError(f"{engine.name} configures its sessions itself; leave --provider-option out")
    if "stream" in options:
        raise PosexportError("a stream is of one process, and the engine computes in others; leave it out")
    provider_named(provider).session_options(options)


def copy_bundle(bundle: Path, manifest: Manifest, target: Path) -> None:
    """Copy the manifest and the files that it lists, and no others."""
    for name in (MANIFEST, *manifest.files):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(locate(bundle, name), target / name)


def _render(engine: Engine, deployment: Deployment, folder: Path) -> list[str]:
    values: dict[str, Any] = {
        "deployment": deployment,
        "engine": engine,
        "manifest": deployment.manifest,
        "version": VERSION,
        "install": deployment.install(engine),
        "command": deployment.command(engine),
    }
    # the engine's templates replace those that it shares
    templates: dict[str, Engine] = {}
    for owner in (*(ENGINES[name] for name in engine.shares), engine):
        values |= owner.values(deployment)
        templates |= dict.fromkeys(template_names(owner), owner)
    for name, owner in templates.items():
        (folder / name).write_text(render(owner, name, **values), encoding="utf-8", newline="\n")
    return sorted(templates)


def _check_output(bundle: Path, output: Path) -> None:
    if os.path.lexists(output):
        raise PosexportError(f"{output} already exists; remove it or choose another output")
    inside, whole = Path(os.path.abspath(output)), Path(os.path.abspath(bundle))
    if whole in inside.parents:
        raise PosexportError(f"{output} is inside the bundle {bundle}; choose an output outside of it")


def _name(text: str) -> str:
    """A valid name of a folder and in a URL, for every engine."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")
    if not name:
        raise PosexportError(f"{text!r} cannot name a model; give --name with letters or digits")
    return name


def render(engine: Engine, file: str, /, **values: object) -> str:
    """The text of the engine's template ``file``."""
    return _environment(engine.package).get_template(f"{engine.name}/{file}{_SUFFIX}").render(values)


def template_names(engine: Engine) -> Iterator[str]:
    """The files in the engine's folder of templates, without those that end in ``.part``, which code renders."""
    folder = files(engine.package) / "templates" / engine.name
    for name in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ():
        file = name.removesuffix(_SUFFIX)
        if file != name and not file.endswith(_PART):
            yield file


@cache
def _environment(package: str) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        undefined=StrictUndefined,
        loader=PackageLoader(package, "templates"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
