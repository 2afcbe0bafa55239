"""Files of other libraries beside a model: each is named in a remark."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import read
from test_adapters import adapter, pair

from posexport.checkpoints import unread_files
from posexport.checkpoints.unread_files import UNREAD_FILES


def ignored(folder: Path, task: str | None = None) -> list[str]:
    return [remark for remark in read(folder, task).remarks if remark.startswith("ignored: ")]


@pytest.mark.parametrize(
    ("files", "remark"),
    [
        (
            ("colbert_linear.pt", "sparse_linear.pt"),
            "ignored: colbert_linear.pt, sparse_linear.pt, of FlagEmbedding (BGE-M3): sparse and multi-vector "
            "embeddings are not in this bundle",
        ),
        (("adapter_config.json",), "ignored: adapter_config.json, of PEFT: the adapter is not merged"),
        (
            ("adapters/query/adapter_config.json", "adapters/text/adapter_config.json"),
            "ignored: adapters/query/adapter_config.json, adapters/text/adapter_config.json, of PEFT: ",
        ),
        (("ner/pytorch_adapter.bin",), "ignored: ner/pytorch_adapter.bin, of adapters (AdapterHub): "),
        (("value_head.safetensors",), "ignored: value_head.safetensors, of LLaMA-Factory: "),
        (("adapter.fra.safetensors",), "ignored: adapter.fra.safetensors, of transformers (load_adapter): "),
        (("llm2vec_config.json",), "ignored: llm2vec_config.json, of LLM2Vec: "),
        (("custom_generate/generate.py",), "ignored: custom_generate/generate.py, of transformers: "),
    ],
)
def test_what_changes_answers_is_named(files: tuple[str, ...], remark: str, bert: Path) -> None:
    for name in files:
        (bert / name).parent.mkdir(parents=True, exist_ok=True)
        (bert / name).write_bytes(b"not read")
    (said,) = ignored(bert)
    assert said.startswith(remark)


def test_what_changes_nothing_is_not(bert: Path) -> None:
    for name in ("onnx/model.onnx", "openvino_model.xml", "optimizer.pt", "README.md", ".git/model_head.pkl"):
        (bert / name).parent.mkdir(exist_ok=True)
        (bert / name).touch()
    assert ignored(bert) == []


def test_every_kind_says_who_reads_it_and_what_is_lost() -> None:
    for name in UNREAD_FILES:
        kind = UNREAD_FILES[name]
        (sentence,) = unread_files.remarks([kind.patterns[0].replace("*", "x")])
        assert sentence.endswith(f", of {kind.library}: {kind.lost}")


def test_an_adapter_that_is_merged_is_not_ignored(copy: Callable[[str], Path]) -> None:
    """Below its model: only the other adapter is named."""
    base = copy("llama-forcausallm")
    merged = adapter(base / "merged", base, pair("model.layers.1.mlp.gate_proj", 20, 13, 0))
    adapter(base / "other", base, {})
    assert [sentence.partition(",")[0] for sentence in ignored(merged)] == ["ignored: other/adapter_config.json"]
