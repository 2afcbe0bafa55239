"""One record for each kind of a stranger's files: a writer of damaged ones, and the reader that is tested."""

import contextlib
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import onnx
import onnx.parser

from ci.lab.fuzz import mutate

ROOT = Path(__file__).resolve().parents[3]
_EMBEDDER = ROOT / "tests" / "embedders" / "bert-mean" / "model"
_BUNDLE = ROOT / ".cache" / "fuzz" / "bundle"
_DECODER = ROOT / "tests" / "golden" / "llama-forcausallm"


@dataclass(frozen=True)
class Kind:
    """One kind of input.

    Attributes:
        write: puts a damaged input into an empty folder; without a generator, the sound one.
        read: does with the folder what the product does.
    """

    write: Callable[[Path, Random | None], None]
    read: Callable[[Path], Any]


def _graphs() -> list[onnx.ModelProto]:
    """Sound small models: the graphs of all rules, and one with functions, bodies and weights in other files."""
    from posexport.inspect.audit.registry import RULES

    texts = [text for code in RULES for text in (RULES[code].bad, RULES[code].good) if text]
    return [*map(onnx.parser.parse_model, texts), *[_rich()] * 20]


def _rich() -> onnx.ModelProto:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "local": 1]>
        rich (int64[B, T] input_ids, int64[B, T] attention_mask, float[B, 2, P, 4] past_key) => (float[B, T, 6] y)
        {
            e = Gather (table, input_ids)
            f = local.twice (e)
            flag = Constant <value = bool {1}> ()
            y = If (flag) <then_branch = yes () => (float[B, T, 6] a) { a = Add (f, large) },
                           else_branch = no () => (float[B, T, 6] b) { b = Identity (f) }>
        }
        <domain: "local", opset_import: ["": 21]>
        twice (x) => (z) { z = Add (x, x) }
    """)
    table = onnx.helper.make_tensor("table", onnx.TensorProto.FLOAT, [30, 6], bytes(720), raw=True)
    large = onnx.helper.make_tensor("large", onnx.TensorProto.FLOAT, [6], [1.0] * 6)
    large.ClearField("float_data")
    large.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "weights.data", "offset": "8", "length": "24"}.items():
        large.external_data.add(key=key, value=value)
    model.graph.initializer.extend([table, large])
    return model


_KEPT: dict[str, Any] = {}


def _write_onnx(folder: Path, rng: Random | None) -> None:
    graphs = _KEPT.get("graphs") or _KEPT.setdefault("graphs", _graphs())
    if rng is None:
        (folder / "model.onnx").write_bytes(graphs[0].SerializeToString())
        return
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice(graphs))
    if rng.random() < 0.9:
        mutate.message(model, rng)
    data = model.SerializeToString()
    (folder / "model.onnx").write_bytes(mutate.damaged(data, rng) if rng.random() < 0.2 else data)
    (folder / "weights.data").write_bytes(bytes(rng.choice((32, 32, 32, 0, 7))))
    with contextlib.suppress(ValueError):
        (folder / rng.choice(("linked.data", "secret"))).symlink_to("/etc/hostname")


def _read_onnx(folder: Path) -> None:
    from posexport.base.options.commands import AuditOptions
    from posexport.inspect.audit.audit import audit
    from posexport.inspect.audit.formats import sarif, text

    findings = audit(folder, AuditOptions())
    if findings.skipped:
        raise RuntimeError(f"rules did not run: {findings.skipped}")
    findings.to_json()
    sarif.document(findings)
    list(text.lines(findings, details=True))


def _copied(source: Path, *names: str) -> Callable[[Path, Random | None], None]:
    """Writes a folder with one of its files damaged, or two."""

    def write(folder: Path, rng: Random | None) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        if rng is None:
            return
        for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2)))):
            path = folder / name
            path.write_bytes(mutate.BY_SUFFIX[path.suffix](path.read_bytes(), rng))

    return write


def _read_source(folder: Path) -> None:
    from posexport.sources.load import load_source
    from posexport.sources.load_options import LoadOptions

    load_source(str(folder), LoadOptions())


def _read_tokenizer(folder: Path) -> None:
    from posexport.run.tokenizer.make import Model, make_tokenizer

    make_tokenizer({path.name: path for path in folder.iterdir() if path.is_file()}, Model(rows=32, longest=64))


def _write_bundle(folder: Path, rng: Random | None) -> None:
    """Writes a bundle with a damaged file; in half of them the manifest has the hash of the damaged file."""
    import hashlib
    import json

    source: Path = _KEPT.get("bundle") or _KEPT.setdefault("bundle", _made_bundle())
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if rng is None:
        return
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    name = rng.choice(("posexport.json", rng.choice(sorted(names))))
    path = folder / name
    data = path.read_bytes()
    if path.suffix == ".onnx":
        model = onnx.load_model_from_string(data)
        mutate.message(model, rng)
        path.write_bytes(model.SerializeToString())
    else:
        path.write_bytes(mutate.BY_SUFFIX.get(path.suffix, mutate.damaged)(data, rng))
    if name != "posexport.json" and rng.random() < 0.5:
        manifest = json.loads((folder / "posexport.json").read_bytes())
        for file, entry in manifest["files"].items():
            content = (folder / file).read_bytes()
            entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (folder / "posexport.json").write_text(json.dumps(manifest))


def _made_bundle() -> Path:
    """A sound bundle, which opens; converted once."""
    import posexport

    if not _BUNDLE.exists():
        posexport.convert(str(_EMBEDDER), _BUNDLE, lengths=[1, 5])
    _read_bundle(_BUNDLE)
    return _BUNDLE


def _read_bundle(folder: Path) -> None:
    import posexport

    session = posexport.load(folder)
    session.manifest  # noqa: B018
    with contextlib.redirect_stdout(io.StringIO()):
        repr(session)
        session.self_check()
        session.encode(["a b", "c"])


def _write_manifest(folder: Path, rng: Random | None) -> None:
    source: Path = _KEPT.get("bundle") or _KEPT.setdefault("bundle", _made_bundle())
    if rng is None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return
    data = (source / "posexport.json").read_bytes()
    (folder / "posexport.json").write_bytes(mutate.BY_SUFFIX[".json"](data, rng))


def _read_manifest(folder: Path) -> None:
    from posexport.run.bundle.read import check_hashes, read

    check_hashes(folder, read(folder))


KINDS: dict[str, Kind] = {
    "onnx": Kind(_write_onnx, _read_onnx),
    "manifest": Kind(_write_manifest, _read_manifest),
    "config": Kind(
        _copied(
            *(_EMBEDDER, "config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
            "config_sentence_transformers.json",
        ),
        _read_source,
    ),
    "decoder-config": Kind(_copied(_DECODER, "config.json"), _read_source),
    "safetensors": Kind(_copied(_EMBEDDER, "model.safetensors"), _read_source),
    "tokenizer": Kind(_copied(_EMBEDDER, "tokenizer.json", "tokenizer_config.json"), _read_tokenizer),
    "bundle": Kind(_write_bundle, _read_bundle),
}
