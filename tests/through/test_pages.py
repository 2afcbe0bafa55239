"""Models that find pages by their pictures (ColPali, ColQwen2), as transformers' models and processors answer."""

import json
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import posexport
from posexport.base.example_inputs import random_ids, with_sizes
from posexport.base.spec import BATCH, PATCHES, InputSpec, Limits, TextRules, TokenRules
from posexport.errors import PosexportError
from posexport.run.feeds import prepare
from posexport.run.images.qwen2_vl import in_rows
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.through import attention, pages
from posexport.through.grids import Patches
from tests.command import posexport as command
from tests.tolerances import agree

pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

#: of the largest element: float32 of two libraries, through layers with large weights
LIMIT = 2e-4
QUERIES = ["Who paid?", "How large is the image of 1996, in all: 12 ?", "a"]
#: heights and widths of pages, of one, two and three numbers of tokens
SIZES = ((20, 30), (33, 17), (12, 12), (25, 60))
WORDS = {"hidden_size": 20, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 5}
IMAGES = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


def drawn(model: Any) -> Any:
    """Weights large enough that the order of tokens matters."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return model.eval()


def colpali(image: int, vocab: int) -> Any:
    import transformers

    words = {**WORDS, "model_type": "gemma", "vocab_size": vocab, "num_key_value_heads": 1, "head_dim": 8}
    siglip = {**IMAGES, "model_type": "siglip_vision_model", "image_size": 12, "patch_size": 4}
    siglip |= {"vision_use_head": False, "projection_dim": 20}
    vlm = {"model_type": "paligemma", "image_token_index": image, "projection_dim": 20, "hidden_size": 20}
    vlm |= {"text_config": {**words, "max_position_embeddings": 256, "pad_token_id": 0}, "vision_config": siglip}
    return drawn(transformers.ColPaliForRetrieval(transformers.ColPaliConfig(embedding_dim=10, vlm_config=vlm)))


def colqwen2(image: int, vocab: int) -> Any:
    import transformers

    words = {**WORDS, "vocab_size": vocab, "num_key_value_heads": 1, "max_position_embeddings": 256, "pad_token_id": 0}
    words |= {"bos_token_id": 0, "eos_token_id": 0}
    words |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0]}}
    tower = {"depth": 2, "embed_dim": 24, "hidden_size": 20, "num_heads": 3, "mlp_ratio": 1, "patch_size": 4}
    tower |= {"spatial_merge_size": 2, "temporal_patch_size": 2}
    vlm = {"model_type": "qwen2_vl", "image_token_id": image, "text_config": words, "vision_config": tower}
    return drawn(transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(embedding_dim=10, vlm_config=vlm)))


def gemmas_processor() -> Any:
    import transformers
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *string.ascii_letters, *string.digits, *"?:,.<>▁\n"]
    tokenizer = transformers.GemmaTokenizer(vocab={token: number for number, token in enumerate(tokens)}, merges=[])
    images = SiglipImageProcessorPil(size={"height": 12, "width": 12})
    images.image_seq_length = 9
    return transformers.ColPaliProcessor(image_processor=images, tokenizer=tokenizer)


def qwens_processor() -> Any:
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokens = ["<|endoftext|>", *sorted(ByteLevel.alphabet())]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocab, merges=[], padding_side="left")
    names = ("im_start", "im_end", "vision_start", "vision_end", "image_pad")
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    size = {"shortest_edge": 64, "longest_edge": 600}
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
    return transformers.ColQwen2Processor(image_processor=images, tokenizer=tokenizer)


def colmodernvbert(image: int, vocab: int) -> Any:
    import transformers

    words = {
        **WORDS,
        "model_type": "modernbert",
        "vocab_size": vocab,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
    }
    words |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 6}
    siglip = {
        **IMAGES,
        "model_type": "siglip_vision_model",
        "image_size": 12,
        "patch_size": 4,
        "vision_use_head": False,
    }
    vlm = {"model_type": "modernvbert", "image_token_id": image, "pixel_shuffle_factor": 1}
    vlm |= {"text_config": words, "vision_config": siglip}
    config = transformers.ColModernVBertConfig(embedding_dim=10, vlm_config=vlm)
    return drawn(transformers.ColModernVBertForRetrieval(config))


def modernverts_processor() -> Any:
    """With special tokens around its texts; tiles of 12 pixels, 9 features each."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *string.ascii_letters, *string.digits, *"?:,.<>|_ \n"]
    vocab = {token: number for number, token in enumerate(tokens)}
    whole = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = [("[CLS]", 1), ("[SEP]", 2)]
    whole.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, **names)
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<global-img>", *places]})
    images = Idefics3ImageProcessorPil(size={"longest_edge": 30}, max_image_size={"longest_edge": 12})
    return transformers.ColModernVBertProcessor(images, tokenizer, image_seq_len=9, query_prefix="Query: ")


#: the model for an image token and a number of tokens, and the processor
KINDS = {
    "colpali": (colpali, gemmas_processor),
    "colqwen2": (colqwen2, qwens_processor),
    "colmodernvbert": (colmodernvbert, modernverts_processor),
}


def written(folder: Path, kind: str) -> tuple[Path, Any, Any]:
    """A checkpoint as transformers saves it, its model and its processor."""
    make, processor_of = KINDS[kind]
    processor = processor_of()
    model = make(processor.image_token_id, len(processor.tokenizer))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if kind == "colpali":  # as in released folders: texts begin with <bos>, which the processor turns off
        content = json.loads((folder / "tokenizer.json").read_text())
        start, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        special = {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [start, text],
            "pair": [start, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special,
        }
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder, model, processor


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """From a kind to the session of its bundle, transformers' model and its processor."""
    at = tmp_path_factory.mktemp("pages")

    @cache
    def load(kind: str) -> Any:
        folder, model, processor = written(at / kind / "model", kind)
        posexport.convert(str(folder), at / kind / "bundle", target="cpu", verify=False)
        return posexport.load(at / kind / "bundle"), model, processor

    yield load
    load.cache_clear()


def pictures() -> list[NDArray[np.uint8]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 255, (*size, 3), dtype=np.uint8) for size in SIZES]


def answers(model: Any, arrays: Any) -> list[NDArray[Any]]:
    """transformers' vectors of each row, without padding."""
    with torch.no_grad():
        embeddings = model(**{name: x for name, x in arrays.items() if name != "labels"}).embeddings
    return [row[mask.bool()].numpy() for row, mask in zip(embeddings, arrays["attention_mask"], strict=True)]


def near(got: Any, wanted: Any) -> None:
    assert [each.shape for each in got] == [each.shape for each in wanted]
    assert max(float(np.abs(a - b).max()) for a, b in zip(got, wanted, strict=True)) < LIMIT


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_pages_are_transformers(opened, kind, tmp_path):
    session, model, processor = opened(kind)
    assert session.manifest.task == "visual-document-retrieval"
    queries = answers(model, processor.process_queries(QUERIES))
    seen = processor.process_images([Image.fromarray(picture) for picture in pictures()])
    page = answers(model, seen)
    near(session.encode(QUERIES), queries)
    near(session.encode_query(QUERIES, batch_size=1), queries)
    for size in (1, 3):
        near(session.encode(images=pictures(), batch_size=size), page)
    near([session.encode_document(pictures()[1]), session.encode(QUERIES[2])], [page[1], queries[2]])
    # the arrays of transformers' processor are the graph's
    names = {spec.name for spec in session.inputs}
    whole = session.run({name: x.numpy() for name, x in seen.items() if name in names})["embeddings"]
    near([row[mask.bool().numpy()] for row, mask in zip(whole, seen["attention_mask"], strict=True)], page)
    # scores, and pages of files by the command
    wanted = processor.score_retrieval(*([torch.from_numpy(each) for each in rows] for rows in (queries, page)))
    assert np.abs(session.similarity(queries, page) - wanted.numpy()).max() < LIMIT
    ranked = session.rank(QUERIES[0], pictures())
    assert [hit["corpus_id"] for hit in ranked] == wanted[0].argsort(descending=True).tolist()
    assert np.abs([hit["score"] for hit in ranked] - wanted[0].sort(descending=True).values.numpy()).max() < 10 * LIMIT
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for file, picture in zip(files, pictures(), strict=False):
        Image.fromarray(picture).save(file)
    asked = ["run", str(session.directory), *(word for file in files for word in ("--image", str(file))), "--json"]
    ranking = json.loads(command(*asked, "--query", QUERIES[0]).stdout)["ranking"]
    assert ranking == session.rank(QUERIES[0], files)
    vectors = json.loads(command(*asked).stdout)["outputs"]
    assert np.abs(np.array(vectors["token_embeddings.1"]) - page[1]).max() < LIMIT


@pytest.mark.all
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.encode(["a <image>"]), "holds <image>, which stands for features of a picture"),
        (lambda s: s.encode(["a"], images=pictures()), "texts, or pictures of pages as images; give one"),
        (lambda s: s.encode(["a"], prompt_name="document"), "texts are queries of this model, and pages are"),
        (lambda s: s.encode_document(pictures(), prompt="a"), "pictures of pages have no prompt"),
        (lambda s: s.rank("a", pictures()[0]), "documents must be a list of pictures, got one ndarray"),
        (lambda s: s.rank("a", pictures(), return_documents=True), "leave out return_documents"),
    ],
)
def test_what_cannot_be_asked_of_pages(opened, call, said):
    with pytest.raises(PosexportError, match=said):
        call(opened("colpali")[0])


@pytest.mark.all
def test_inputs_and_outputs_may_be_of_half_precision(tmp_path):
    folder, *_ = written(tmp_path / "m", "colpali")
    posexport.convert(str(folder), tmp_path / "b", precision="fp16", io="half", verify=False)
    session = posexport.load(tmp_path / "b")
    assert session.encode(QUERIES)[0].dtype == session.encode(images=pictures())[0].dtype == np.float16
    assert len(session.rank(QUERIES[0], pictures())) == len(SIZES)


@pytest.mark.all
def test_a_bundle_of_texts_has_no_pages(tmp_path):
    posexport.convert("encoder-rope", tmp_path / "b", settings={"layers": 1}, verify=False)
    with pytest.raises(PosexportError, match="has no vectors of pages; give texts, or use prepare and run"):
        posexport.load(tmp_path / "b").encode(images=pictures())


def loaded(folder: Path) -> Any:
    return load_source(str(folder), LoadOptions())


def alone(folder: Path, kind: str) -> Path:
    """A checkpoint without a processor."""
    KINDS[kind][0](5, 64).save_pretrained(folder)
    return folder


@pytest.mark.all
def test_the_definition_is_transformers_forward(tmp_path):
    """In float64, at other sizes than the conversion compares: rows padded on either side, texts without a page."""
    source = loaded(alone(tmp_path / "m", "colqwen2"))
    assert any("takes arrays alone: transformers cannot load a processor" in remark for remark in source.remarks)
    assert [part.spec.file for part in source.parts] == ["vision_encoder.onnx", "language_model.onnx"]
    model, whole = colqwen2(5, 64).double(), source.module.double()
    random = torch.Generator().manual_seed(1)
    grids = torch.tensor([[1, 2, 4], [1, 6, 4], [1, 2, 2]])
    pixels = torch.randn(3, 24, 96, generator=random).double()
    ids = torch.randint(9, 64, (3, 11), generator=random)
    for row, (start, count) in enumerate(((1, 2), (4, 6), (7, 1))):
        ids[row, start : start + count] = 5
    mask = torch.tensor([[1] * 8 + [0] * 3, [1] * 11, [0] * 4 + [1] * 7])
    given = {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels, "image_grid_thw": grids}
    with torch.no_grad():
        got, features = whole(**given)
        # norms and eager attention compute in float32 in any precision
        assert (got - model(**given).embeddings).abs().max() < LIMIT
        assert features.shape == (3, 6, 20)
        text = {"input_ids": ids.where(ids != 5, 6), "attention_mask": mask}
        (got,) = source.parts[1].module(**text, image_features=torch.zeros(3, 0, 20).double())
        assert (got - model(**text).embeddings).abs().max() < LIMIT


@pytest.mark.all
def test_tiles_of_pages_are_transformers(tmp_path):
    """Pages of two tiles and of one, beside which the row is filled up."""
    model = colmodernvbert(5, 64)
    model.save_pretrained(tmp_path / "m")
    whole = loaded(tmp_path / "m").module
    random = torch.Generator().manual_seed(1)
    pixels = torch.randn(2, 2, 3, 12, 12, generator=random)
    pixels[0, 1] = 0
    ids = torch.randint(9, 64, (2, 25), generator=random)
    ids[0, 8:17], ids[1, 3:21] = 5, 5
    mask = torch.tensor([[1] * 20 + [0] * 5, [1] * 25])
    given = {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}
    with torch.no_grad():
        assert (whole(**given)[0] - model(**given).embeddings).abs().max() < LIMIT


@pytest.mark.parametrize("wrong", ["features", "prefix"])
def test_another_model_than_transformers_is_refused(tmp_path, monkeypatch, wrong):
    if wrong == "features":
        original = pages.placed
        monkeypatch.setattr(pages, "placed", lambda x, image, features: original(x, image, features.roll(1, 1)))
    else:
        monkeypatch.setattr(pages, "_attend_to_all", lambda _: None)
    with pytest.raises(PosexportError, match="gives other embeddings of a page than its parts do"):
        loaded(alone(tmp_path / "m", "colpali"))


def test_features_stand_at_image_tokens():
    """The k-th image token of a row has its k-th feature; those behind the last one, and other tokens, their own."""
    x = torch.arange(12.0).view(2, 6, 1)
    image = torch.tensor([[0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 1, 0]]).bool()
    features = torch.tensor([[[-1.0], [-2.0], [-3.0]], [[-4.0], [-5.0], [-6.0]]])
    got = pages.placed(x, image, features)[..., 0].tolist()
    assert got == [[0, -1, -2, 3, -3, 5], [6, 7, 8, 9, -4, 11]]
    assert torch.equal(pages.placed(x, image, features[:, :0]), x)


def test_rows_of_patches_are_the_pictures_patches():
    """Places of the patches of a row are those of the picture alone, and only real patches are attended to."""
    grids = torch.tensor([[1, 4, 2], [1, 2, 6]])
    rows = Patches(grids, 24, 2, row=12)
    for number, grid in enumerate(grids):
        count = int(grid.prod())
        picture = Patches(grid[None], count, 2)
        assert torch.equal(rows.places_N2[number * 12 : number * 12 + count], picture.places_N2)
    assert rows.real_N.view(2, 12).sum(1).tolist() == [8, 12]
    q, k, v = torch.randn(3, 1, 3, 24, 4, generator=torch.Generator().manual_seed(0)).double()
    got, _ = attention.in_rows(torch.nn.Module(), q, k, v, None, cu_seq_lens_q=rows.real_N.view(2, 12), scaling=0.5)
    for row, count in ((slice(0, 8), 8), (slice(12, 24), 12)):
        weights = (q[0, :, row] @ k[0, :, row].mT * 0.5).softmax(-1)
        agree(got[0, row], (weights @ v[0, :, row]).transpose(0, 1), "rounded", torch.float64)
        assert weights.shape == (3, count, count)


GRIDS = [
    InputSpec(name="pixel_values", dtype="float32", axes=[BATCH, PATCHES, 5], role="values"),
    InputSpec(name="image_grid_thw", dtype="int64", axes=[BATCH, 3], role="grids", size=2),
]


def test_grids_of_rows():
    """Drawn grids fit into their rows, the first one fills its own; others are refused."""
    drawn = {"pixel_values": np.zeros((40, 24, 5), np.float32), "image_grid_thw": np.ones((40, 3), np.int64)}
    grids = with_sizes(GRIDS, drawn, np.random.default_rng(0))["image_grid_thw"]
    assert set(grids[:, 0]) == {1}
    assert (grids[:, 1:] % 2 == 0).all()
    assert grids[0].prod() == 24
    assert 4 == grids.prod(1).min() < grids.prod(1).max() == 24
    for wrong in ([1, 4, 8], [2, 2, 4]):
        given = {"pixel_values": np.zeros((2, 24, 5)), "image_grid_thw": [[1, 4, 6], wrong]}
        with pytest.raises(PosexportError, match="has 24 patches a row; it takes one frame of at most as many patches"):
            prepare(given, GRIDS, Limits())


def test_half_of_an_examples_tokens_stand_for_features():
    spec = InputSpec(name="ids", dtype="int64", axes=[BATCH, 1000], role="tokens", size=99, placeholder=7)
    share = (random_ids(spec, (4, 1000), np.random.default_rng(0)) == 7).mean()
    assert 0.45 < share < 0.55


def test_pictures_in_rows():
    arrays = {"pixel_values": np.arange(12.0).reshape(6, 2), "image_grid_thw": np.array([[1, 1, 2], [1, 2, 2]])}
    rows = in_rows(arrays)["pixel_values"]
    assert rows.tolist() == [[[0, 1], [2, 3], [0, 0], [0, 0]], [[4, 5], [6, 7], [8, 9], [10, 11]]]


@pytest.mark.all
def test_a_processor_of_other_features_is_refused(tmp_path):
    folder, *_ = written(tmp_path / "m", "colpali")
    content = json.loads((folder / "processor_config.json").read_text())
    content["image_processor"]["image_seq_length"] = 8
    (folder / "processor_config.json").write_text(json.dumps(content))
    with pytest.raises(PosexportError, match="image_seq_length = 8, and the model 9 features of a picture"):
        loaded(folder)


@pytest.mark.all
def test_rules_of_pages(tmp_path):
    rules = loaded(written(tmp_path / "m", "colpali")[0]).text_rules
    assert isinstance(rules, TextRules)
    assert isinstance(rules.tokens, TokenRules)
    assert rules.prompts == {"query": "Question: "}
    pages_rules = rules.tokens.pages
    assert pages_rules is not None
    assert (pages_rules.query_start, pages_rules.query_end) == ("<bos>", "<pad>" * 10 + "\n")
    assert (pages_rules.page_start, pages_rules.page_end) == ("", "<bos>Describe the image.\n")


def test_pages_over_another_model_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "KINDS", {("colpali", "other"): ()})
    with pytest.raises(
        PosexportError, match=r"vlm_config\.model_type = paligemma; of models of pages colpali over other"
    ):
        loaded(alone(tmp_path / "m", "colpali"))
