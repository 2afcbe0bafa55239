"""BGE-M3: vectors of texts, weights of words and vectors of tokens in one pass, as FlagEmbedding's formulas say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import read
from torch.nn import functional

import posexport
from posexport import PosexportError, Session
from posexport.nn.hybrid import HybridEmbedding
from posexport.run.hybrid import lexical_weights
from posexport.sources.source import Source
from tests import bge_m3
from tests.bge_m3 import TEXTS
from tests.command import posexport as command
from tests.parity_models import of_changed, prove
from tests.tolerances import agree


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bge_m3.write(tmp_path_factory.mktemp("bge-m3") / "model")


@pytest.fixture(scope="module")
def source(folder: Path) -> Source:
    return read(folder, allow_pickle=True)


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    bundle = folder.parent / "bundle"
    posexport.convert(str(folder), bundle, target="cpu", allow_pickle=True, verify=False)
    return posexport.load(bundle)


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[dict[str, Any]]:
    """The formulas in float64, of each text alone, from the encoder's states and the two files."""
    encoder = read(folder, allow_pickle=True).module.double().encoder
    files = {name: torch.load(folder / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert")}
    linear = {name: (part["weight"].double().numpy(), part["bias"].double().numpy()) for name, part in files.items()}
    tokenizer = bge_m3.tokenizer()
    answers = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        with torch.inference_mode():
            states_TC = encoder(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64), None)[0].numpy()
        weights = {}
        for number, state in zip(ids, states_TC, strict=True):
            weight = max(0.0, float((linear["sparse"][0] @ state + linear["sparse"][1])[0]))
            if number >= len(bge_m3.SPECIAL) and weight > 0:
                weights[str(number)] = max(weight, weights.get(str(number), 0.0))
        vectors = [linear["colbert"][0] @ state + linear["colbert"][1] for state in states_TC[1:]]
        answers.append(
            {
                "dense_vecs": states_TC[0] / np.sqrt((states_TC[0] ** 2).sum()),
                "lexical_weights": weights,
                "colbert_vecs": np.stack([vector / np.sqrt((vector**2).sum()) for vector in vectors]),
            }
        )
    return answers


def scores_by_hand(query: dict[str, Any], passage: dict[str, Any], weights: tuple[float, ...]) -> dict[str, float]:
    dense = sum(a * b for a, b in zip(query["dense_vecs"], passage["dense_vecs"], strict=True))
    words = query["lexical_weights"].keys() & passage["lexical_weights"].keys()
    sparse = sum(query["lexical_weights"][word] * passage["lexical_weights"][word] for word in words)
    best = [max(float(q @ p) for p in passage["colbert_vecs"]) for q in query["colbert_vecs"]]
    colbert = sum(best) / len(best)
    return {
        "colbert": colbert,
        "sparse": sparse,
        "dense": dense,
        "sparse+dense": (weights[1] * sparse + weights[0] * dense) / (weights[0] + weights[1]),
        "colbert+sparse+dense": (weights[2] * colbert + weights[1] * sparse + weights[0] * dense) / sum(weights),
    }


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_all_values_are_the_formulas(session: Session, truth: list[dict[str, Any]], batch_size: int) -> None:
    got = session.encode(TEXTS, output_value="all", batch_size=batch_size)
    assert list(got) == ["dense_vecs", "lexical_weights", "colbert_vecs"]
    for number, wanted in enumerate(truth):
        agree(got["dense_vecs"][number], wanted["dense_vecs"], "model in float32", np.float32)
        agree(got["colbert_vecs"][number], wanted["colbert_vecs"], "model in float32", np.float32)
        words = got["lexical_weights"][number]
        assert words.keys() == wanted["lexical_weights"].keys()
        if words:
            pairs = [(words[word], weight) for word, weight in wanted["lexical_weights"].items()]
            agree(*zip(*pairs, strict=True), "model in float32", np.float32)
    # some words have a weight, some have none, and words repeat
    assert sum(map(len, got["lexical_weights"])) > 5
    assert any(len(words) < len(set(text.split())) for words, text in zip(got["lexical_weights"], TEXTS, strict=True))


def test_each_value_alone_is_the_same(session: Session) -> None:
    every = session.encode(TEXTS, output_value="all")
    dense = session.encode(TEXTS, output_value="dense")
    assert np.array_equal(dense, session.encode(TEXTS))
    assert np.array_equal(dense, every["dense_vecs"])
    assert session.encode(TEXTS, output_value="sparse") == every["lexical_weights"]
    for got, wanted in zip(session.encode(TEXTS, output_value="colbert"), every["colbert_vecs"], strict=True):
        assert np.array_equal(got, wanted)
    single = session.encode(TEXTS[0], output_value="all")
    assert isinstance(single, dict)
    assert (single["dense_vecs"].shape, len(single["colbert_vecs"])) == ((bge_m3.HIDDEN,), 7)
    assert session.encode([], output_value="sparse") == []
    assert session.encode([], output_value="all")["lexical_weights"] == []


def test_scores_are_the_formulas(session: Session, truth: list[dict[str, Any]]) -> None:
    pairs, weights = [(0, 2), (3, 0), (4, 4), (5, 1)], (0.4, 0.2, 0.7)
    asked = [(TEXTS[a], TEXTS[b]) for a, b in pairs]
    got = session.compute_score(asked, weights_for_different_modes=weights)
    for number, (a, b) in enumerate(pairs):
        for kind, wanted in scores_by_hand(truth[a], truth[b], weights).items():
            agree(got[kind][number], wanted, "model", np.float32)
    equal = session.compute_score(asked[0])
    wanted = scores_by_hand(truth[0], truth[2], (1, 1, 1))
    assert equal.keys() == wanted.keys()
    for kind, score in wanted.items():
        agree(equal[kind], score, "model", np.float32)
    # the same by similarity of each kind
    for kind, name in (("sparse", "sparse"), ("colbert", "colbert"), ("dense", "dense")):
        values = session.encode(TEXTS, output_value=name)
        table = session.similarity(values, values)
        assert table.shape == (len(TEXTS), len(TEXTS))
        agree(table[0, 2], equal[kind], "model", np.float32)
        agree(session.similarity_pairwise(values[:1], values[2:3])[0], equal[kind], "model", np.float32)


def test_the_largest_weight_of_a_word_counts() -> None:
    weights = np.array([0.5, 0.0, 0.25, 2.0, 0.75])
    assert lexical_weights([7, 8, 9, 0, 9], weights, {0, None}) == {"7": 0.5, "9": 0.75}


def test_without_modules_it_is_the_first_token_as_in_the_library(tmp_path: Path, source: Source) -> None:
    alone = read(bge_m3.write(tmp_path / "m", modules=False), allow_pickle=True)
    assert alone.task == source.task == "sentence-embedding"
    assert [spec.name for spec in alone.outputs] == [
        "last_hidden_state",
        "sentence_embedding",
        "sparse_vecs",
        "colbert_vecs",
    ]
    ids = torch.arange(4, 22).view(2, 9)
    with torch.inference_mode():
        for got, wanted in zip(alone.module(ids), source.module(ids), strict=True):
            assert torch.equal(got, wanted)


def test_padding_has_neither_weight_nor_vector(source: Source) -> None:
    ids, mask = torch.arange(4, 18).view(2, 7), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]])
    ids = torch.where(mask == 1, ids, 1)  # the padding's id, by which this model counts positions
    with torch.inference_mode():
        *_, weights, vectors = source.module(ids, mask)
        *_, alone_weights, alone_vectors = source.module(ids[1:, 2:6])
    assert not weights[1][mask[1] == 0].any()
    assert not vectors[1][mask[1] == 0].any()
    agree(weights[1, 2:6], alone_weights[0], "model in float32", torch.float32)
    agree(vectors[1, 2:6], alone_vectors[0], "model in float32", torch.float32)


# -- the proof ---------------------------------------------------------------------------------------------------------


def absolute_weight(head: HybridEmbedding) -> None:
    """What is negative becomes a weight too."""
    linear = head.sparse_linear
    linear.forward = lambda x: functional.linear(x, linear.weight, linear.bias).abs()  # type: ignore[method-assign]


def without_bias(head: HybridEmbedding) -> None:
    head.colbert_linear.bias.zero_()


def shifted_weight(head: HybridEmbedding) -> None:
    head.sparse_linear.bias += 1e-3


@pytest.mark.fresh
@pytest.mark.all(but=("[shifted_weight",))
@pytest.mark.parametrize(
    ("change", "output"),
    [
        (None, ""),
        (absolute_weight, "sparse_vecs"),
        (shifted_weight, "sparse_vecs"),
        (without_bias, "colbert_vecs"),
    ],
)
def test_the_proof_finds_a_wrong_head(
    folder: Path, tmp_path: Path, change: Callable[[HybridEmbedding], None] | None, output: str
) -> None:
    of_head = None if change is None else lambda module: change(module.head)
    right, graph = of_changed(lambda: read(folder, allow_pickle=True), of_head, tmp_path)
    report = prove(right, graph, lengths=(2, 17), threads=1)
    assert report.passed == (change is None)
    assert output in report.to_text()


@pytest.mark.all
@pytest.mark.parametrize("precision", ["fp32", "int8", "fp16"])
def test_conversion_is_proven(folder: Path, tmp_path: Path, precision: str) -> None:
    done = posexport.convert(str(folder), tmp_path / "b", target="cpu", precision=precision, allow_pickle=True)
    assert done.report is not None
    assert done.report.passed


@pytest.mark.all
def test_int8_has_the_same_words(folder: Path, tmp_path: Path, truth: list[dict[str, Any]]) -> None:
    """Rounding to int8 moves a weight by some hundredths of the largest."""
    posexport.convert(str(folder), tmp_path / "b", target="cpu", precision="int8", allow_pickle=True, verify=False)
    got = posexport.load(tmp_path / "b").encode(TEXTS, output_value="all")
    for number, wanted in enumerate(truth):
        largest = max([*wanted["lexical_weights"].values(), 1.0])
        for word in got["lexical_weights"][number].keys() | wanted["lexical_weights"].keys():
            a, b = (side.get(word, 0.0) for side in (got["lexical_weights"][number], wanted["lexical_weights"]))
            assert abs(a - b) < 0.1 * largest
        assert (got["colbert_vecs"][number] * wanted["colbert_vecs"]).sum(-1).min() > 0.98
        assert got["dense_vecs"][number] @ wanted["dense_vecs"] > 0.98


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_without_pickles_the_dense_vector_remains(folder: Path) -> None:
    plain = read(folder)
    assert [spec.name for spec in plain.outputs] == ["last_hidden_state", "sentence_embedding"]
    assert any("--allow-pickle reads both files" in remark for remark in plain.remarks)


def test_one_file_alone_is_named(tmp_path: Path) -> None:
    folder = bge_m3.write(tmp_path / "m")
    (folder / "colbert_linear.pt").unlink()
    plain = read(folder, allow_pickle=True)
    assert len(plain.outputs) == 2
    assert any(remark.startswith("ignored: sparse_linear.pt, of FlagEmbedding") for remark in plain.remarks)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("colbert_linear.pt", {"bias": torch.zeros(7)}, "has no matrix called weight, as FlagEmbedding saves it"),
        ("sparse_linear.pt", {"weight": torch.zeros(1, 19), "bias": torch.zeros(1)}, "is [1, 19], needed [1, 20]"),
        ("sparse_linear.pt", {"weight": torch.zeros(1, 20)}, "needed ones are not in the file (sparse_linear.pt/bias)"),
        ("colbert_linear.pt", [1, 2], "is not a table of dense tensors by name"),
        ("sparse_linear.pt", Path("code"), "cannot be read with weights only"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: Any, said: str) -> None:
    folder = bge_m3.write(tmp_path / "m")
    torch.save(content, folder / name)
    with pytest.raises(PosexportError) as caught:
        read(folder, allow_pickle=True)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"output_value": "colbert", "precision": "int8"}, "are for the vectors of texts; leave them out"),
        ({"output_value": "all", "truncate_dim": 3}, "are for the vectors of texts; leave them out"),
        ({"output_value": "lexical"}, "output_value = 'lexical' is not computed here"),
    ],
)
def test_what_cannot_be_asked(session: Session, call: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        session.encode(TEXTS[:2], **call)


def test_values_of_different_kinds_have_no_similarity(session: Session) -> None:
    sparse, colbert = (session.encode(TEXTS[:2], output_value=kind) for kind in ("sparse", "colbert"))
    with pytest.raises(PosexportError, match="these are colbert and sparse values"):
        session.similarity(sparse, colbert)
    with pytest.raises(PosexportError, match="use compute_score"):
        session.similarity(session.encode(TEXTS, output_value="all"), sparse)
    with pytest.raises(PosexportError, match="must be three numbers"):
        session.compute_score(("a", "b"), weights_for_different_modes=[1, 2])


def test_run_prints_and_saves_them(session: Session, tmp_path: Path) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(TEXTS[:2]))
    asked = ["run", session._directory, "--texts", lines, "--output-value"]
    done = command(*asked, "all", "--json", "-o", tmp_path / "values.npz")
    assert done.returncode == 0, done.stderr
    every = session.encode(TEXTS[:2], output_value="all")
    outputs = json.loads(done.stdout)["outputs"]
    assert list(outputs)[:3] == ["sentence_embedding", "token_ids.0", "lexical_weights.0"]
    assert outputs["token_ids.0"] == [int(word) for word in every["lexical_weights"][0]]
    with np.load(tmp_path / "values.npz") as saved:
        agree(saved["colbert_vecs.1"], every["colbert_vecs"][1], "another library", np.float32)
    assert "colbert_vecs.1  float32" in command(*asked, "colbert").stdout
