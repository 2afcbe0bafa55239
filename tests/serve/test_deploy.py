"""`posexport deploy`: what it writes for each engine, and what it refuses."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import yaml
from google.protobuf import text_format

import posexport
from posexport import PosexportError
from posexport.base.spec import OutputSpec
from posexport.serve.deploy.engine import ENGINES, Engine
from posexport.serve.deploy.write import deploy
from tests import tiny_bundle
from tests.command import posexport as command
from tests.tiny_bundle import AXES, MANIFEST, rewrite, write_bundle

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "deploy"
#: a vector of the real minilm, whose example the files in ``examples`` are
ELEMENTS = 384


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text embedder that outwardly is all-MiniLM-L6-v2."""
    outputs = [
        OutputSpec(name="last_hidden_state", axes=[*AXES, ELEMENTS]),
        OutputSpec(name="sentence_embedding", axes=["batch_size", ELEMENTS]),
    ]
    manifest = msgspec.structs.replace(MANIFEST, task="sentence-embedding", outputs=outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_bundle, "GRAPH", tiny_bundle.GRAPH.replace(", 3]", f", {ELEMENTS}]"))
        model = tiny_bundle.tiny_model(np.ones((13, ELEMENTS), np.float32))
    target = tmp_path_factory.mktemp("bundles") / "minilm"
    return write_bundle(target, model=model, manifest=manifest, texts=True, external=True)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """A bundle without a tokenizer."""
    return write_bundle(tmp_path / "arrays")


def texts_of(folder: Path) -> dict[str, str]:
    """Every file that a person would read."""
    shown = (path for path in folder.rglob("*") if path.is_file() and "bundle" not in path.relative_to(folder).parts)
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in shown
        if path.name not in ("model.onnx", "model.onnx.data", "tokenizer.json")
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_are_what_deploy_writes(engine: str, bundle: Path, tmp_path: Path) -> None:
    done = command("deploy", bundle, "--to", engine, "-o", tmp_path / "out", "--workers", "2")
    assert done.returncode == 0, done.stderr
    written = texts_of(tmp_path / "out")
    assert written == texts_of(EXAMPLES / engine), "python examples/deploy/write.py writes them"
    readme = written["README.md"]
    assert readme.count("```bash") <= 3
    assert done.stdout.splitlines()[-1].partition(" && ")[2] in readme, "the printed command is the README's"
    for name, text in written.items():
        assert len(text.splitlines()) <= 60, name
        if name.endswith(".py"):
            ast.parse(text)
        if name.endswith(".json"):
            json.loads(text)


def test_an_engine_of_a_package_brings_its_templates(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = tmp_path / "their_engine" / "templates" / "theirs"
    templates.mkdir(parents=True)
    (tmp_path / "their_engine" / "__init__.py").touch()
    (templates / "run.sh.jinja").write_text("theirs {{ deployment.label }}\n")
    (templates / "settings.json.jinja").write_text("{}\n")
    monkeypatch.syspath_prepend(tmp_path)
    engine = Engine(name="theirs", what="an engine", command="./run.sh", shares=("mlserver",), package="their_engine")
    monkeypatch.setitem(ENGINES, "theirs", engine)
    done = deploy(bundle, "theirs", tmp_path / "out", link=True)
    assert {"run.sh", "settings.json", "model-settings.json"} < set(done.files)
    assert (tmp_path / "out" / "run.sh").read_text() == "theirs minilm\n"
    assert (tmp_path / "out" / "settings.json").read_text() == "{}\n"


def test_the_copy_is_a_bundle_that_opens(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "noted")
    (tmp_path / "noted" / "notes.txt").write_text("not part of the bundle")
    for engine in ("ray-data", "docker"):
        deploy(tmp_path / "noted", engine, tmp_path / engine)
        copy = tmp_path / engine / "bundle"
        assert posexport.load(copy).encode(["a cat"]).shape == (1, ELEMENTS)
        assert not (copy / "notes.txt").exists()


def test_a_link_names_the_bundle_where_it_is(bundle: Path, tmp_path: Path) -> None:
    for engine, file in (("ray-data", "job.py"), ("ray-serve", "app.py"), ("mlserver", "model-settings.json")):
        deploy(bundle, engine, tmp_path / engine, link=True)
        assert not (tmp_path / engine / "bundle").exists()
        assert json.dumps(str(bundle)) in (tmp_path / engine / file).read_text()
    for engine in ("triton", "docker"):
        with pytest.raises(PosexportError, match="needs the bundle's files in its own folder; leave --link out"):
            deploy(bundle, engine, tmp_path / engine, link=True)


@pytest.mark.parametrize("engine", ["ray-data", "ray-serve", "mlserver", "docker"])
def test_options_of_the_provider_stand_in_the_engine_s_settings(engine: str, tmp_path: Path, bundle: Path) -> None:
    options = {"memory_limit": "4GB", "tf32": "on"}
    deploy(bundle, engine, tmp_path / "out", provider="cuda", provider_options=options, link=engine != "docker")
    texts = texts_of(tmp_path / "out")
    if engine in ("mlserver", "docker"):
        assert json.loads(texts["model-settings.json"])["parameters"]["extra"]["provider_options"] == options
        return
    calls = [node for text in (texts.get("app.py"), texts.get("job.py")) if text for node in ast.walk(ast.parse(text))]
    words = [word for call in calls if isinstance(call, ast.Call) for word in call.keywords]
    assert [ast.literal_eval(word.value) for word in words if word.arg == "provider_options"] == [options]


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("triton", {"tf32": "on"}, "triton configures its sessions itself; leave --provider-option out"),
        ("mlserver", {"stream": "1"}, "a stream is of one process"),
        ("mlserver", {"tf32": "maybe"}, "tf32 of CUDA takes on or off, got 'maybe'"),
    ],
)
def test_options_that_an_engine_cannot_take(
    engine: str, options: dict[str, str], said: str, bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(PosexportError, match=said):
        deploy(bundle, engine, tmp_path / "out", provider="cuda", provider_options=options)
    assert not (tmp_path / "out").exists()


def test_json_is_one_document(bundle: Path, tmp_path: Path) -> None:
    done = command("deploy", bundle, "--to", "mlserver", "-o", tmp_path / "out", "--json")
    found = json.loads(done.stdout)
    assert found["install"] == "pip install --find-links wheels 'posexport[mlserver,onnxruntime]'"
    assert sorted(found["files"]) == sorted(texts_of(tmp_path / "out"))


@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_an_output_that_is_there_is_refused(kind: str, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    done = command("deploy", bundle, "--to", "triton", "-o", out)
    assert done.returncode == 2
    assert f"{out} already exists; remove it or choose another output" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert kind != "file" or out.read_text() == "mine"


def test_bad_input_is_one_sentence_and_leaves_nothing(bundle: Path, arrays: Path, tmp_path: Path) -> None:
    damaged, cuda = tmp_path / "damaged", tmp_path / "cuda"
    shutil.copytree(bundle, damaged)
    (damaged / "tokenizer.json").write_text("{}")
    shutil.copytree(bundle, cuda)
    rewrite(cuda, target="cuda")
    asked: list[tuple[list[Any], str]] = [
        ([tmp_path / "nowhere", "--to", "triton"], "nowhere"),
        ([bundle, "--to", "kubernetes"], "'kubernetes' is not one of 'ray-data'"),
        ([damaged, "--to", "mlserver"], "tokenizer.json"),
        (
            [cuda, "--to", "mlserver"],
            "was converted with --target cuda, the deployment is for cpu; give --provider cuda",
        ),
        ([bundle, "--to", "mlserver", "--provider", "tpu"], "unknown provider 'tpu'"),
        ([arrays, "--to", "ray-data"], "makes no vectors of texts"),
        ([bundle, "--to", "mlserver", "--workers", "0"], "0 is not in the range"),
        ([bundle, "--to", "mlserver", "--name", "///"], "cannot name a model"),
    ]
    before = sorted(tmp_path.iterdir())
    for words, sentence in asked:
        done = command("deploy", *words, "-o", tmp_path / "out")
        assert done.returncode == 2, words
        assert sentence in done.stderr, words
        assert "Traceback" not in done.stderr
        assert sorted(tmp_path.iterdir()) == before
    done = command("deploy", bundle, "--to", "triton", "-o", bundle / "out")
    assert (done.returncode, "is inside the bundle" in done.stderr) == (2, True)
    assert not (bundle / "out").exists()


def test_an_error_while_it_writes_leaves_nothing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / ".out.posexport-x" / "file"))

    monkeypatch.setattr("posexport.serve.deploy.write.shutil.copyfile", full)
    done = command("deploy", bundle, "--to", "mlserver", "-o", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_installed_is_named_with_its_pip_line() -> None:
    for module, extra in (("ray_serve", "ray"), ("ray_data", "ray"), ("mlserver", "mlserver")):
        if importlib.util.find_spec(extra) is not None:
            pytest.skip(f"{extra} is installed here")
        with pytest.raises(PosexportError, match=re.escape(f"pip install 'posexport[{extra}]'")):
            importlib.import_module(f"posexport.serve.engines.{module}")


def test_no_engine_brings_pytorch() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in {engine.extra for engine in ENGINES.values() if engine.extra}:
        assert not [line for line in extras[name] if re.match(r"torch|transformers|onnxscript|posexport", line)]
    written = (EXAMPLES / "docker" / "requirements.txt").read_text()
    assert written.startswith("posexport[mlserver,onnxruntime]==")


def test_the_image_is_read_only_and_not_roots(bundle: Path, tmp_path: Path) -> None:
    deploy(bundle, "docker", tmp_path / "out")
    lines = (tmp_path / "out" / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]}
    assert {"bundle", "settings.json", "model-settings.json", "requirements.txt"} <= copied
    assert all((tmp_path / "out" / name).exists() for name in copied if "*" not in name)
    assert lines.index("USER 10001") < next(i for i, line in enumerate(lines) if line.startswith("CMD"))
    assert not [line for line in lines if line.startswith("RUN") and lines.index(line) > lines.index("USER 10001")]
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["metrics_dir"].startswith("/tmp/")
    assert settings["environments_dir"].startswith("/tmp/")


def test_kserve_names_what_is_there(bundle: Path, tmp_path: Path) -> None:
    deploy(bundle, "mlserver", tmp_path / "out", name="My_Model.2")
    service = yaml.safe_load((tmp_path / "out" / "kserve.yaml").read_text())
    settings = json.loads((tmp_path / "out" / "model-settings.json").read_text())
    assert service["metadata"]["name"] == "my-model-2"
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == f"/v2/models/{settings['name']}/ready"
    volumes = [volume["name"] for volume in service["spec"]["predictor"]["volumes"]]
    assert [mount["name"] for mount in container["volumeMounts"]] == volumes
    assert container["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.all
def test_kserve_s_own_classes_take_the_yaml(bundle: Path, tmp_path: Path) -> None:
    subprocess.run([ROOT / "ci" / "engines" / "setup", "kserve"], check=True)
    check = [ROOT / ".cache" / "engines" / "kserve" / "bin" / "python", ROOT / "tests" / "engines" / "kserve_schema.py"]
    deploy(bundle, "mlserver", tmp_path / "out")
    file = tmp_path / "out" / "kserve.yaml"
    done = subprocess.run([*check, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    text = file.read_text()
    for right, bad, problem in (
        ("readOnlyRootFilesystem", "readOnlyRoot", "securityContext has no readOnlyRoot"),
        ("containerPort: 8080", 'containerPort: "http"', "containerPort is no int"),
        ("containerPort: 8080", "name: http", "lacks container_port"),
    ):
        assert right in text
        file.write_text(text.replace(right, bad))
        done = subprocess.run([*check, file], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert problem in done.stdout


@pytest.fixture(scope="module")
def proto() -> ModuleType:
    """Triton's model_config.proto as tritonclient has it; alone, as the package around it needs gRPC."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None
    assert package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(proto: ModuleType, folder: Path) -> dict[str, Any]:
    """Each model's configuration; the text must be Triton's, with every field known."""
    return {
        path.parent.name: text_format.Parse(path.read_text(), proto.ModelConfig())
        for path in sorted(folder.glob("repository/*/config.pbtxt"))
    }


def same_as_graph(config: Any, model: onnx.ModelProto, proto: ModuleType) -> None:
    """Inputs and outputs of a configuration are the graph's, by name, type and dims."""
    stored = {tensor.name for tensor in model.graph.initializer}
    triton = {"FLOAT": "FP32", "INT64": "INT64", "BOOL": "BOOL", "FLOAT16": "FP16"}
    for ports, values in ((config.input, model.graph.input), (config.output, model.graph.output)):
        values = [value for value in values if value.name not in stored]
        assert [port.name for port in ports] == [value.name for value in values]
        for port, value in zip(ports, values, strict=True):
            kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
            assert proto.DataType.Name(port.data_type) == f"TYPE_{triton[kind]}"
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]
            assert list(port.dims) == (dims[1:] if config.max_batch_size else dims)
            assert not getattr(port, "allow_ragged_batch", False)
            assert not getattr(port, "optional", False), "which Triton refuses of models that batch"


def test_triton_s_configuration_is_the_graph_s(bundle: Path, tmp_path: Path, proto: ModuleType) -> None:
    deploy(bundle, "triton", tmp_path / "out", workers=3)
    ((name, config),) = parsed(proto, tmp_path / "out").items()
    model = tmp_path / "out" / "repository" / name / "1" / "model.onnx"
    same_as_graph(config, onnx.load(model, load_external_data=False), proto)
    assert (config.name, config.backend, config.max_batch_size) == (name, "onnxruntime", 32)
    assert config.HasField("dynamic_batching")
    assert config.instance_group[0].count == 3
    assert config.instance_group[0].kind == proto.ModelInstanceGroup.KIND_CPU
    session = posexport.load(bundle)
    import onnxruntime

    alone = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])  # weights lie beside it
    feeds = session.tokenize(["a cat", "dog"])
    np.testing.assert_array_equal(alone.run(["sentence_embedding"], feeds)[0], session.encode(["a cat", "dog"]))


def test_a_field_that_triton_does_not_know_is_noticed(proto: ModuleType) -> None:
    with pytest.raises(text_format.ParseError, match="max_batches"):
        text_format.Parse("max_batches: 3", proto.ModelConfig())


@pytest.mark.all  # a trace
def test_a_decoder_says_what_triton_needs_for_its_cache(tmp_path: Path, proto: ModuleType) -> None:
    posexport.convert("decoder-rope", tmp_path / "decoder", settings={"layers": 1}, verify=False)
    done = deploy(tmp_path / "decoder", "triton", tmp_path / "out")
    ((name, config),) = parsed(proto, tmp_path / "out").items()
    model = onnx.load(tmp_path / "out" / "repository" / name / "1" / "model.onnx", load_external_data=False)
    same_as_graph(config, model, proto)
    assert not config.HasField("dynamic_batching"), "rows of a batch would have caches of different lengths"
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "implicit state" in readme
    assert "posexport convert --layout genai" in readme
    assert "The proof ran with session.set_denormal_as_zero, for which Triton's backend has no parameter" in readme
    assert "Without session.set_denormal_as_zero Intel processors are slow" in readme
    assert "KV cache" not in (EXAMPLES / "triton" / "README.md").read_text()
    assert done.files == ["README.md"]
