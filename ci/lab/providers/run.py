"""Converts a model of every encoding and family, verifies it on a provider, writes ci/results/providers.json."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import posexport
from ci.lab.providers.models import ROOT, Model, models
from posexport.base.targets.providers import targets
from posexport.base.targets.target import PORTABLE
from posexport.errors import PosexportError

CACHE = ROOT / ".cache"
RESULTS = ROOT / "ci" / "results" / "providers.json"
HERE = Path(__file__).parent
BUNDLES = CACHE / "providers-run"
#: lengths in any table of 20 positions or more; the grid tests others
LENGTHS = (2, 17)
#: lengths at which bfloat16 is proven: it has no odd integer above 256
LONG = (300, 2048)
#: models that the length guard is tested with at all optimisation levels
GUARDED = ("encoder-absolute", "encoder-learned", "decoder-absolute")
SECONDS = 900


def main() -> None:
    """Verify the models that the command line names; exit code 1 if a guard fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("provider", choices=("webgpu", "openvino"))
    parser.add_argument("names", nargs="*", help="rows of the table; default: all")
    parser.add_argument("--precision", choices=("bf16",), help="prove sessions in it, of float32 graphs of encodings")
    parser.add_argument("--length", type=int, action="append", help="with --precision: in rows of their own")
    parser.add_argument("--part", default="0/1", help="this part of all rows: N/OF")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON; rows that are not run stay as they are")
    parser.add_argument("--keep", action="store_true", help="do not verify again what has a row already")
    arguments = parser.parse_intermixed_args()
    number, of = map(int, arguments.part.split("/"))
    known = {model.name: model for model in models()}
    rows = arguments.provider
    if arguments.precision is not None:
        rows += f" {arguments.precision}"
        known = {name: model for name, model in known.items() if model.source == name}
    if arguments.length:
        rows += "".join(f" {length}" for length in arguments.length)
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in arguments.names or known]
    bad = 0
    for model in chosen[number::of]:
        if arguments.keep and model.name in _rows(arguments.output).get(rows, {}):
            continue
        result = verified(model, arguments.provider, arguments.precision, arguments.length or LONG)
        _write(arguments.output, rows, model, result)
        bad += bool(result.get("guard") and any(result["guard"].values()))
        print(f"{rows} {model.name}: {_said(result)}", flush=True)
    sys.exit(1 if bad else 0)


def verified(model: Model, provider: str, precision: str | None, lengths: Sequence[int]) -> dict[str, Any]:
    """The result for one model: an entry of providers.json. ``precision``: of sessions, proven at ``lengths``."""
    try:
        bundle = converted(model, target=provider if provider in targets() else PORTABLE)
    except PosexportError as err:
        return {"right": None, "why": f"not converted: {err}"}
    command = [python(provider), str(HERE / "verify.py"), provider, str(bundle)]
    if precision is not None:
        command += ["--precision", precision, "--against", model.source]
        command += [text for setting in model.settings for text in ("--set", setting)]
        command += [text for length in lengths for text in ("--length", str(length))]
    elif model.name in GUARDED:
        command += ["--guard"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=_environment(provider), check=False
        )
    except subprocess.TimeoutExpired:
        return {"right": None, "why": f"no answer in {SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        return {"right": None, "why": f"the process ended with {done.returncode}: {said[-1] if said else ''}"[:300]}
    result: dict[str, Any] = json.loads(lines[-1])
    result["why"] = " ".join(result["why"].replace(str(bundle), "the model").split())[:600]
    return result


def converted(model: Model, *, target: str) -> Path:
    """The bundle for ``target``, converted once and proven on the CPU."""
    into = BUNDLES / f"{model.name.replace(' ', '-')}-{target}"
    if into.is_dir():
        return into
    options: dict[str, Any] = {
        "precision": model.precision,
        "target": target,
        "provider": "cpu",
        "keep_failed": True,
        "settings": model.settings,
    }
    try:
        posexport.convert(model.source, into, lengths=LENGTHS, **options)
    except PosexportError:  # a model of images, or with a shorter table
        posexport.convert(model.source, into, **options)
    return into


def python(provider: str) -> str:
    """The interpreter of the provider's environment."""
    return str(Path(os.environ.get("PROVIDERS_ENVS", CACHE / "providers")) / provider / "bin" / "python")


def _environment(provider: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if provider == "webgpu" and (driver := os.environ.get("SWIFTSHADER", "")) != "gpu":
        folder = Path(driver or CACHE / "clients" / "chromium")
        environment |= {
            "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
            "LD_LIBRARY_PATH": str(folder),
            "VK_ICD_FILENAMES": str(folder / "vk_swiftshader_icd.json"),
        }
    return environment


def _rows(results: Path) -> dict[str, dict[str, Any]]:
    stored: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.exists() else {}
    return stored


def _write(results: Path, provider: str, model: Model, result: dict[str, Any]) -> None:
    rows = _rows(results)
    of_provider = {**rows.get(provider, {}), model.name: {"family": model.family, **result}}
    order = [known.name for known in models()]
    rows[provider] = {name: of_provider[name] for name in order if name in of_provider}
    results.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _said(result: dict[str, Any]) -> str:
    words = {True: "right", False: "WRONG", None: "did not run"}[result["right"]]
    error = "" if result.get("error") is None else f", error {result['error']:.1e} of {result['tolerance']:.1e}"
    strays = f", {len(result['strays'])} nodes elsewhere" if result.get("strays") else ""
    return f"{words}{error}{strays}{'. ' + result['why'][:200] if result['why'] else ''}"


if __name__ == "__main__":
    main()
