"""The Python API: what `import posexport` offers, its examples, and that it leaves the process as it was."""

import contextlib
import doctest
import importlib
import inspect
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.run import session
from posexport.run.generate import config as generation_config
from posexport.sources.transformers_model import is_transformers_model
from posexport.testing import assert_parity
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden" / "bert-absolute"
FUNCTIONS = ("convert", "verify", "load", "list_available")
WORKERS = "posexport.inspect.bench.workers."
SIZES = {"layers": 1, "hidden": 60, "max_positions": 24}


class Scores(nn.Module):
    """A table of positions, added to the tokens'; what it gives depends on the order of tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.places = nn.Embedding(31, 12), nn.Parameter(torch.randn(19, 12))
        self.out = nn.Linear(12, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(ids) * self.places[: ids.shape[1]]))


IDS = torch.arange(14).reshape(2, 7)


@pytest.mark.parametrize("module", [posexport.api, session, generation_config], ids=lambda module: module.__name__)
def test_the_examples_of_docstrings(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried > 0


def test_every_public_function_has_types_and_an_example() -> None:
    for name in FUNCTIONS:
        function = getattr(posexport, name)
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values()), name
        assert ">>> " in (function.__doc__ or ""), name


def test_functions_are_functions_after_all_submodules_are_imported(tmp_path: Path) -> None:
    """A module called convert would take the function's place as soon as it is imported."""
    for info in pkgutil.walk_packages(posexport.__path__, "posexport."):
        # workers of the benchmark run in environments of their own
        if not info.name.endswith("__main__") and not info.name.startswith(WORKERS):
            # an adapter needs the library that it is for
            adapters = ("posexport.serve.engines.", "posexport.sentence_transformers.")
            refused = contextlib.suppress(PosexportError) if info.name.startswith(adapters) else None
            with refused or contextlib.nullcontext():
                importlib.import_module(info.name)
    done = posexport.convert("encoder-rope", tmp_path / "b", settings=SIZES, lengths=[3])
    assert isinstance(done, posexport.Conversion)
    assert isinstance(posexport.verify(tmp_path / "b"), posexport.Report)
    assert isinstance(posexport.load(tmp_path / "b"), posexport.Session)
    assert {row["name"] for row in posexport.list_available()} >= {"rope", "t5", "alibi", "nope"}
    assert {row["name"] for row in posexport.list_available("families")} >= {"bert", "llama", "t5"}
    assert set(typing.get_type_hints(posexport.GenerationConfig)) >= {"max_new_tokens", "temperature"}
    assert sorted(set(dir(posexport)) & set(posexport.__all__)) != []
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        posexport.nonesuch  # noqa: B018


def test_importing_is_light() -> None:
    code = (
        "import sys, posexport; posexport.convert, posexport.load\n"
        "print(sorted({'torch', 'onnxruntime', 'numpy', 'onnx'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_module_in_memory_is_converted_and_left_alone(tmp_path: Path) -> None:
    module = Scores().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    done = posexport.convert(module, tmp_path / "b", example_inputs={"ids": IDS}, verify=False)
    assert done.good
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert done.manifest is not None
    assert done.manifest.source.name == "Scores"
    assert any("at most 19 tokens" in sentence for sentence in done.remarks)
    ids = torch.tensor([[4, 1, 30, 2, 2], [9, 8, 7, 6, 5]])
    got = posexport.load(tmp_path / "b").run({"ids": ids.numpy()})["output"]
    agree(got, module(ids), "operator", np.float32)
    assert np.abs(got - module(ids.flip(1)).detach().numpy()).max() > 0.1  # positions matter


def test_a_bundle_is_verified_against_the_module(tmp_path: Path) -> None:
    posexport.convert(Scores(), tmp_path / "b", example_inputs=(IDS,), lengths=[4])
    report = posexport.verify(tmp_path / "b", Scores(), example_inputs=(IDS,), lengths=[5, 19])
    assert (report.passed, report.verdict) == (True, "checked at 5, 19 tokens, not proven")
    other = Scores()
    with torch.no_grad():
        other.places[3] += 0.01
    remarks: list[str] = []
    report = posexport.verify(
        tmp_path / "b", other, example_inputs=(IDS,), lengths=[5], remark=remarks.append, tolerance=1e-5
    )
    assert not report.passed
    assert "FAIL" in report.to_text()
    assert any("its weights or files differ" in sentence for sentence in remarks)
    loose = posexport.verify(tmp_path / "b", other, example_inputs=(IDS,), lengths=[5], tolerance=0.1)
    assert (loose.passed, loose.verdict) == (True, "within 0.1")
    assert json.loads(loose.to_json())["verdict"] == "within 0.1"


def test_the_bundle_tells_the_module_s_inputs(tmp_path: Path) -> None:
    posexport.convert(Scores(), tmp_path / "b", example_inputs=(IDS,), verify=False)
    assert assert_parity(tmp_path / "b", Scores(), lengths=[5])["cpu"].passed
    other = Scores()
    with torch.no_grad():
        other.places[3] += 0.01
    with pytest.raises(AssertionError, match="misses parity on cpu"):
        assert_parity(tmp_path / "b", other, lengths=[5])
    (tmp_path / "mine.py").write_text("from test_api import Scores as make")
    assert posexport.verify(tmp_path / "b", f"{tmp_path / 'mine.py'}:make", lengths=[5]).passed
    with pytest.raises(posexport.PosexportError, match="Bilinear is a module alone"):
        posexport.verify(tmp_path / "b", nn.Bilinear(3, 3, 3))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": Scores()}, "Scores is a module alone"),
        ({"source": Scores(), "example_inputs": 7}, "inputs must map names to tensors, got int"),
        ({"source": Scores(), "example_inputs": (IDS,), "settings": {"layers": 2}}, "not for modules"),
        ({"source": "encoder-rope", "example_inputs": (IDS,)}, "example_inputs and axes are for modules in memory"),
        ({"source": "encoder-rope", "target": "tpu"}, "target"),
        ({"source": "encoder-rope", "cache": "big"}, "cache"),
        ({"source": "encoder-rope", "layout": "zip"}, "layout"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(posexport.PosexportError, match=words) as said:
        posexport.convert(output=tmp_path / "b", verify=False, **arguments)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "b").exists()


def test_a_tolerance_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(posexport.PosexportError, match="tolerance must be a relative error above 0"):
        posexport.verify(tmp_path, tolerance=-1.0)


def test_a_class_of_transformers_is_known_without_transformers() -> None:
    base = type("PreTrainedModel", (nn.Module,), {"__module__": "transformers.modeling_utils"})
    members = {"__module__": "transformers.models.bert.modeling_bert", "forward": Scores.forward}
    bert = type("BertModel", (base,), members)
    assert is_transformers_model(bert())
    assert is_transformers_model(type("Mine", (bert,), {})())
    assert not is_transformers_model(type("Mine", (bert,), {"forward": Scores.forward})())
    assert not is_transformers_model(Scores())


class PreTrainedModel(Scores):
    """What transformers' models inherit, as far as posexport looks."""

    config = SimpleNamespace(name_or_path="")

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)

    def save_pretrained(self, folder: str) -> None:
        shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)


PreTrainedModel.__module__ = "transformers.modeling_utils"


def test_a_model_of_transformers_is_called_by_its_name(tmp_path: Path) -> None:
    """Not by the folder that it is written to meanwhile."""

    class Unknown(PreTrainedModel):
        def save_pretrained(self, folder: str) -> None:
            Path(folder, "config.json").write_text("{}")

    with pytest.raises(posexport.PosexportError, match=r"^Unknown") as said:
        posexport.convert(Unknown(), tmp_path / "b")
    assert "posexport-" not in str(said.value)


def test_a_model_of_transformers_with_an_example_is_called_as_it_is(tmp_path: Path) -> None:
    """Such as one whose forward is the user's own."""
    done = posexport.convert(PreTrainedModel(), tmp_path / "b", example_inputs=(IDS,), lengths=[1, 17])
    assert done.good
    assert [spec.name for spec in done.manifest.inputs] == ["ids"]
    assert posexport.verify(tmp_path / "b", PreTrainedModel(), lengths=[5]).passed


def test_a_file_s_model_of_transformers_needs_no_example(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from tests.cli.test_api import PreTrainedModel\n\n\ndef model():\n    return PreTrainedModel()\n")
    done = posexport.convert(f"{file}:model", tmp_path / "b", lengths=[1, 17])
    assert done.good
    assert done.manifest.source.name.endswith("mine.py:model")
    assert [spec.name for spec in done.manifest.inputs][:2] == ["input_ids", "attention_mask"]
    assert posexport.verify(tmp_path / "b", f"{file}:model", lengths=[5]).passed


def test_a_cache_of_transformers_is_told_what_to_do(tmp_path: Path) -> None:
    class Cache(nn.Module):
        def forward(self, ids: Tensor) -> tuple[Tensor, object]:
            return ids, type("DynamicCache", (), {"__module__": "transformers.cache_utils"})()

    with pytest.raises(posexport.PosexportError, match=r"got DynamicCache .* set its config\.use_cache = False$"):
        posexport.convert(Cache(), tmp_path / "b", example_inputs=(IDS,))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> posexport.Session:
    folder = tmp_path_factory.mktemp("decoder") / "b"
    posexport.convert("decoder-alibi", folder, settings=SIZES, verify=False)
    return posexport.load(folder, threads=1)


def test_a_session_says_what_it_is(decoder: posexport.Session) -> None:
    said = repr(decoder)
    assert "text-generation on cpu, any length" in said
    assert "input_ids [batch_size, sequence_length]" in said
    assert "KV cache" in said
    assert "logits [batch_size, sequence_length, " in said


def test_options_of_generate_and_a_config_are_the_same(decoder: posexport.Session) -> None:
    config = posexport.GenerationConfig(max_new_tokens=5, temperature=2.0, seed=4)
    by_config = decoder.generate([[5, 6, 7]], config).completions
    assert by_config == decoder.generate([[5, 6, 7]], max_new_tokens=5, temperature=2.0, seed=4).completions
    assert len(decoder.generate([[5, 6, 7]], config, max_new_tokens=3).completions[0].tokens) == 3
    sampled = decoder.generate([[5, 6, 7]], max_new_tokens=12, do_sample=True, temperature=99.0).completions
    assert sampled != decoder.generate([[5, 6, 7]], max_new_tokens=12).completions


def test_the_process_stays_as_it_was(tmp_path: Path) -> None:
    """Environment, umask, signal handlers, working directory, loggers, numeric state of the thread."""
    import logging
    import warnings

    def state() -> tuple[Any, ...]:
        mask = os.umask(0)
        os.umask(mask)
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        levels = {name: logging.getLogger(name).level for name in ("", "torch", "torch.onnx", "onnxscript", "onnx_ir")}
        kept = float(np.float32(2**-140) * np.float32(1)) != 0.0
        state = (dict(os.environ), mask, handlers, levels, os.getcwd(), list(sys.path), kept)
        return (
            *state,
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            warnings.filters[:],
        )

    before = state()
    posexport.convert("encoder-t5", tmp_path / "b", settings=SIZES, lengths=[3])
    posexport.verify(tmp_path / "b")
    posexport.load(tmp_path / "b").run({"input_ids": [[1, 2, 3]]})
    assert state() == before


@pytest.mark.all
@pytest.mark.filterwarnings("error")
def test_umask_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(_mask: int) -> int:
        raise AssertionError("another thread's files would get these permissions")

    monkeypatch.setattr(os, "umask", touched)
    posexport.convert("encoder-nope", tmp_path / "b", settings=SIZES, verify=False)
    mode = (tmp_path / "b" / "model.onnx").stat().st_mode & 0o777
    (tmp_path / "new").touch()
    assert mode == (tmp_path / "new").stat().st_mode & 0o777


@pytest.mark.all
def test_a_loaded_model_of_transformers_is_converted(tmp_path: Path) -> None:
    """The model's own tokens are greedy decoding's."""
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 40, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 5, "num_key_value_heads": 5, "max_position_embeddings": 128}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    done = posexport.convert(model, tmp_path / "b", lengths=[1, 17])
    prompt = [[5, 6, 7, 8]]
    tokens = posexport.load(tmp_path / "b").generate(prompt, max_new_tokens=8, eos_token_id=())
    wanted = model.generate(torch.tensor(prompt), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert tokens.completions[0].tokens == wanted[0, 4:].tolist()
    assert done.good
    assert posexport.verify(tmp_path / "b", model, lengths=[5]).passed


@pytest.mark.parametrize(
    ("name", "arguments", "options", "sentence"),
    [
        ("convert", (5, "x"), {}, "source must be a checkpoint, a built-in model's name, file.py:factory or a torch"),
        ("convert", ("encoder-rope", 7), {}, r"output must be a path, got 7 \(int\)"),
        ("convert", ("encoder-rope", "x"), {"lengths": "5"}, "lengths must be a list of which each is an integer"),
        ("convert", ("encoder-rope", "x"), {"lengths": [0]}, "lengths must be at least 1, got 0"),
        ("convert", ("encoder-rope", "x"), {"precision": 8}, "precision must be one of fp32"),
        ("convert", ("encoder-rope", "x"), {"threads": "2"}, r"threads must be an integer, got '2' \(str\)"),
        ("convert", ("encoder-rope", "x"), {"threads": 2000}, "threads must be at most 1024, got 2000"),
        ("verify", ("x", 3), {}, "against must be a checkpoint"),
        ("verify", ("x",), {"tolerance": "3"}, "tolerance must be a number or None"),
        ("load", (5,), {}, "bundle must be a path"),
        ("load", ("x",), {"memory": "quick"}, "memory must be one of flat, fast, got 'quick'"),
        ("load", ("x",), {"check": 1}, "check must be True or False"),
        ("pipeline", (3,), {}, "bundle must be a path or an open session, got int"),
        ("pipeline", ("x",), {"provider": 4}, "provider must be a string"),
        ("pipeline", ("x",), {"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ("list_available", ("encoding",), {}, "did you mean encodings"),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_sentence(name: str, arguments: Any, options: Any, sentence: str) -> None:
    with pytest.raises(posexport.PosexportError, match=sentence):
        getattr(posexport, name)(*arguments, **options)
