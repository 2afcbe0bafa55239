"""Hub ids: from the local cache without network or huggingface_hub, else downloaded, else a line to type."""

import functools
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from posexport.checkpoints import hub
from posexport.checkpoints.hub_cache import projection_weights
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.run.bundle.read import read
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "bert-absolute"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-org/tiny.bert_1"
VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in a working directory that is empty too."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    empty = tmp_path / "work"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return tmp_path / "home" / "hub"


def fill(cache: Path, *files: str, commit: str = COMMIT, branch: str | None = "main") -> Path:
    """An entry as huggingface_hub writes it: links of a snapshot into blobs."""
    entry = cache / f"models--{NAME.replace('/', '--')}"
    snapshot = entry / "snapshots" / commit
    for folder in (snapshot, entry / "blobs", entry / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        digest = hashlib.sha256(file.encode()).hexdigest()
        shutil.copyfile(GOLDEN / file, entry / "blobs" / digest)
        (snapshot / file).symlink_to(f"../../blobs/{digest}")
    if branch is not None:
        ref = entry / "refs" / branch
        ref.parent.mkdir(exist_ok=True)
        ref.write_text(commit)
    return snapshot


@pytest.mark.parametrize(
    ("argument", "hub_id"),
    [
        (NAME, hub.HubId(NAME)),
        (f"{NAME}@v1.0", hub.HubId(NAME, "v1.0")),
        (f"{NAME}@refs/pr/1", hub.HubId(NAME, "refs/pr/1")),
        ("bert-base", None),
        ("/absolute/path", None),
        ("./org/name", None),
        ("../org", None),
        ("a/b/c", None),
        ("org/name@../../x", None),
        ("org/na--me", None),
        ("org/", None),
        ("org/name.", None),
        ("org/name:factory", None),
    ],
)
def test_which_arguments_are_hub_ids(argument: str, hub_id: hub.HubId | None) -> None:
    assert hub.parse(argument) == hub_id


def test_an_existing_path_comes_first(cache: Path) -> None:
    fill(cache, "config.json", "model.safetensors")
    shutil.copytree(GOLDEN, NAME)
    assert hub.parse(NAME) is None
    assert load_source(NAME, LoadOptions()).revision is None


@pytest.mark.all
def test_a_cached_id_is_converted_without_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, "config.json", "model.safetensors")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a cache hit opened a connection"))
    done = CliRunner().invoke(group, ["convert", NAME, "-o", "out", "--no-verify"])
    assert done.exit_code == 0, done.output
    assert f"{NAME} is read from the Hugging Face cache at commit 0123456789ab" in done.stderr
    manifest = read(Path("out"))
    assert (manifest.source.name, manifest.source.revision, manifest.source.kind) == (NAME, COMMIT, "huggingface")
    assert manifest.source.sha256 == load_source(str(GOLDEN), LoadOptions()).sha256
    # the same weights, through the links
    from_cache, plain = (
        load_source(NAME, LoadOptions()).module.state_dict(),
        load_source(str(GOLDEN), LoadOptions()).module.state_dict(),
    )
    assert from_cache.keys() == plain.keys()
    assert all(torch.equal(from_cache[name], plain[name]) for name in plain)


def test_the_task_of_the_recipe_holds_for_verify_against_the_id() -> None:
    from posexport.sources.prepare import recorded_options

    found = recorded_options({"task": "features"}, LoadOptions(), NAME, kind="huggingface", name=NAME)
    assert found.task == "features"


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", None])
def test_the_cache_is_where_huggingface_hub_has_it(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub", None: "home/.cache/huggingface/hub"}.get(
        variable, ""
    )
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path))
    snapshot = fill(tmp_path / below, "config.json", "model.safetensors")
    assert hub.snapshot(hub.HubId(NAME)).directory == snapshot


def test_revisions(cache: Path) -> None:
    first, second = "1" * 40, "2" * 40
    fill(cache, "config.json", "model.safetensors", commit=first, branch="v1")
    fill(cache, "config.json", "model.safetensors", commit=second)
    for revision, commit in (("v1", first), ("main", second), (first, first), (second, second)):
        assert hub.snapshot(hub.HubId(NAME, revision)).commit == commit
    assert load_source(f"{NAME}@v1", LoadOptions()).revision == first


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else plain(name))


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("files", [(), ("config.json",), ("model.safetensors",)])
def test_without_the_library_the_line_to_type(files: tuple[str, ...], cache: Path) -> None:
    """Also where the cache has only a part of it, as another program may leave it."""
    if files:
        fill(cache, *files)
    with pytest.raises(PosexportError) as caught:
        load_source(NAME if files else f"{NAME}@v2", LoadOptions())
    revision = "" if files else " --revision v2"
    assert f"hf download {NAME}{revision} --local-dir tiny.bert_1 and convert that directory" in str(caught.value)
    assert "pip install 'posexport[hub]'" in str(caught.value)


def test_offline_forbids_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        PosexportError, match=r"HF_HUB_OFFLINE forbids a download: unset it, or type hf download some-org"
    ):
        hub.snapshot(hub.HubId(NAME))


def test_settings_are_refused_before_anything_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "snapshot", lambda *_, **__: pytest.fail("a download was begun"))
    with pytest.raises(PosexportError, match=f"--set is for built-in models; the sizes of {NAME} are in its config"):
        load_source(NAME, LoadOptions(settings=("layers=2",)))


@pytest.mark.usefixtures("no_library")
def test_a_sharded_checkpoint_with_a_missing_shard_is_no_hit(cache: Path) -> None:
    snapshot = fill(cache, "config.json")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(PosexportError, match="not completely"):
        hub.snapshot(hub.HubId(NAME))
    (snapshot / "model-00002-of-00002.safetensors").write_bytes(b"")
    assert hub.snapshot(hub.HubId(NAME)).directory == snapshot


@pytest.mark.usefixtures("no_library")
def test_pickles_are_a_hit_only_where_they_are_allowed(cache: Path) -> None:
    snapshot = fill(cache, "config.json")
    (snapshot / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(PosexportError, match="no such directory"):
        hub.snapshot(hub.HubId(NAME))
    assert hub.snapshot(hub.HubId(NAME), allow_pickle=True).directory == snapshot


#: what a repository holds beside what a conversion needs
EXTRA = (
    "README.md",
    "pytorch_model.bin",
    "modeling.py",
    "onnx/model.onnx",
    "onnx/config.json",
    "tf_model.h5",
    "x.safetensors",
    "sparse_linear.pt",
)
#: of one word
WORD = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}).encode()
REPOSITORIES: dict[str, dict[str, bytes]] = {
    "plain": {"tokenizer.json": WORD},
    "embedding": {
        "modules.json": json.dumps(
            [
                {"type": "sentence_transformers.models.Transformer", "path": "enc"},
                {"type": "sentence_transformers.models.Pooling", "path": "2_Pooling"},
            ]
        ).encode(),
        "2_Pooling/config.json": b"{}",
    },
    "sharded": {
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
        ).encode(),
        "one.safetensors": b"1",
        "two.safetensors": b"2",
    },
    "pickle": {},
    "nothing": {"model.gguf": b""},
    # the configuration has another name
    "gliner": {"tokenizer.json": b"{}"},
}


def contents() -> dict[str, dict[str, bytes]]:
    config, weights = (GOLDEN / "config.json").read_bytes(), (GOLDEN / "model.safetensors").read_bytes()
    found = {}
    for name, files in REPOSITORIES.items():
        extra = {file: b"?" for file in EXTRA if name != "nothing"}
        folder = "enc/" if name == "embedding" else ""
        single = {f"{folder}model.safetensors": weights} if name in ("plain", "embedding", "gliner") else {}
        stated = "gliner_config.json" if name == "gliner" else f"{folder}config.json"
        found[f"org/{name}"] = {stated: config, **single, **files, **extra}
    return found


class Handler(BaseHTTPRequestHandler):
    """What huggingface_hub asks of the Hub: what a repository holds, and its files."""

    repositories: dict[str, dict[str, bytes]]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        kind, *parts = self.path.lstrip("/").split("/")
        if kind == "api":
            name, revision = "/".join(parts[1:3]), parts[4] if len(parts) > 3 else "main"
            if name == "org/gated":
                return self._fail(403, "GatedRepo")
            if name not in self.repositories:
                return self._fail(404, "RepoNotFound")
            if revision not in ("main", COMMIT):
                return self._fail(404, "RevisionNotFound")
            siblings = [{"rfilename": file} for file in self.repositories[name]]
            return self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
        name, file = f"{kind}/{parts[0]}", "/".join(parts[3:])
        return self._send(self.repositories[name][file])

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the base class's name
        """Nothing: a test's output is its own."""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    """The address of an imitation of the Hub, and what it was asked for."""
    Handler.repositories, Handler.asked = contents(), []
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}", Handler.asked
    http.shutdown()
    thread.join()
    http.server_close()


def in_process(code: str, endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: huggingface_hub reads its variables when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )


SNAPSHOTS = """
import json, sys
from posexport.errors import PosexportError
from posexport.checkpoints import hub
from posexport.checkpoints.hub_cache import projection_weights
found = {}
for argument in sys.argv[2:]:
    try:
        directory = hub.snapshot(hub.parse(argument), allow_pickle=sys.argv[1] == "pickle").directory
        found[argument] = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    except PosexportError as err:
        found[argument] = str(err)
json.dump(found, sys.stdout)
"""


def snapshots(mode: str, endpoint: str, *arguments: str) -> dict[str, list[str] | str]:
    done = in_process(SNAPSHOTS, endpoint, mode, *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str] | str] = json.loads(done.stdout)
    return found


def test_a_download_takes_what_conversion_needs(server: tuple[str, list[str]]) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install 'posexport[hub]'")
    endpoint, asked = server
    names = [
        "org/plain",
        "org/embedding",
        "org/sharded",
        "org/pickle",
        "org/nothing",
        "org/absent",
        "org/gated",
        "org/gliner",
    ]
    found = snapshots("", endpoint, *names, "org/plain@v9")
    assert found["org/plain"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert found["org/gliner"] == ["gliner_config.json", "model.safetensors", "tokenizer.json"]
    assert found["org/embedding"] == [
        "2_Pooling/config.json",
        "enc/config.json",
        "enc/model.safetensors",
        "modules.json",
    ]
    assert found["org/sharded"] == ["config.json", "model.safetensors.index.json", "one.safetensors", "two.safetensors"]
    assert found["org/pickle"] == (
        "org/pickle has its weights as .bin only, a pickle; if you trust it use --allow-pickle"
    )
    assert "has no model.safetensors, which conversion needs; it holds model.gguf" in found["org/nothing"]
    assert "no such directory: org/absent, and the Hugging Face Hub has no such model" in found["org/absent"]
    assert "org/gated is gated: accept its conditions" in found["org/gated"]
    assert found["org/plain@v9"].startswith("org/plain has no revision v9")  # type: ignore[union-attr]
    # the cache answers from now on, and pickles come where they are allowed and there is nothing else
    before = len(asked)
    again = snapshots("pickle", endpoint, "org/plain", "org/sharded", f"org/plain@{COMMIT}", "org/gliner")
    assert len(asked) == before
    assert again["org/plain"] == again[f"org/plain@{COMMIT}"] == found["org/plain"]
    assert snapshots("pickle", endpoint, "org/pickle")["org/pickle"] == ["config.json", "pytorch_model.bin"]


def test_no_network_is_one_sentence() -> None:
    pytest.importorskip("huggingface_hub", reason="pip install 'posexport[hub]'")
    found = snapshots("", "http://127.0.0.1:9", "org/plain")["org/plain"]
    assert found.startswith("no such directory: org/plain, and the Hugging Face Hub did not give it (")  # type: ignore[union-attr]
    assert found.endswith("type hf download org/plain --local-dir plain and convert that directory")  # type: ignore[union-attr]
    assert "\n" not in found


@pytest.mark.all
def test_convert_downloads(server: tuple[str, list[str]]) -> None:
    """The whole way, with proof: from an id that no cache has to a bundle that is verified against the id."""
    pytest.importorskip("huggingface_hub", reason="pip install 'posexport[hub]'")
    command = "import sys; from posexport.cli import main; main()"
    done = in_process(command, server[0], "convert", "org/plain", "-o", "out", "--length", "7")
    assert done.returncode == 0, done.stderr
    assert "ignored: sparse_linear.pt, of FlagEmbedding" in done.stderr
    assert read(Path("out")).source.revision == COMMIT
    done = in_process(command, server[0], "verify", "out", "--against", "org/plain", "--length", "7")
    assert done.returncode == 0, done.stderr


def test_heads_of_other_libraries_are_fetched_whole() -> None:
    """SetFit's and model2vec's; BGE-M3's pickles where they are allowed; none without one of its files."""
    setfit, bge_m3 = ["config_setfit.json", "model_head.safetensors"], ["sparse_linear.pt", "colbert_linear.pt"]
    names = {*setfit, *bge_m3, "head.safetensors"}
    fetched = functools.partial(projection_weights, lambda _: None)
    assert fetched(names, allow_pickle=True) == [["head.safetensors"], setfit, bge_m3]
    assert fetched(names, allow_pickle=False) == [["head.safetensors"], setfit]
    assert fetched({setfit[1], bge_m3[0]}, allow_pickle=True) == []
