"""A bundle's tokenizer.json alone gives the ids of transformers' tokenizers (tests/answers/tokenizers).

The golden ids are of transformers 4.57.6 and 5.24.0, for a folder of each tokenizer class of posexport's families and
for folders whose files contradict each other.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import posexport
from ci.answers.tokenizer_folders.bases import KEPT, kept
from ci.answers.tokenizer_folders.folders import FOLDERS, SWITCHED, Folder
from ci.answers.tokenizer_folders.texts import PAIRS, TEXTS
from posexport import PosexportError
from posexport.conversion.tokenizer import render
from posexport.run.texts import Texts, encoded
from posexport.run.tokenizer import library
from posexport.run.tokenizer.make import Model, TokenizerFile, make_tokenizer
from posexport.run.tokenizer.sample_texts import sample_pairs, sample_texts
from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches import mistral_regex

GOLDEN = json.loads((KEPT / "answers.json").read_text(encoding="utf-8"))
MODEL = Path(__file__).parents[2] / "embedders" / "bert-mean" / "model"
#: where transformers 5 follows the folder, and 4.57 its class's default or not at all
OF_5 = {
    "transformers 5",
    "generic pre-tokenizer with a prefix space",
    "llama without keys",
    "xlm-roberta add_prefix_space off",
    "albert do_lower_case off",
    "merges.txt, opt",
    "deberta-v2 split_by_punct",
}
#: where it is transformers 5 that does not follow the folder
ONLY_OF_4 = {
    *("deberta", "deberta-v2", "llama", "gemma", "generic add_prefix_space", "llama add_eos_token"),
    *("llama add_eos_token alone", "llama add_bos_token off", "llama add_bos_token on", "mistral add_eos_token"),
    *(
        "gemma add_eos_token",
        "gpt-neox add_eos_token",
        "nllb",
        "nllb legacy_behaviour",
        "merges.txt, roberta",
        "merges.txt, bart add_prefix_space",
    ),
}
#: tokenizer.json says already what the other file says, or transformers follows tokenizer.json
UNCHANGED = {
    *("bert truncation and padding saved", "bert split_special_tokens", "gpt2 add_bos_token", "qwen2 add_eos_token"),
    *("generic pre-tokenizer with a prefix space", "llama without keys", "qwen2 post-processor with an end token"),
}


def made(folder: Path) -> TokenizerFile:
    return make_tokenizer({path.name: path for path in folder.iterdir()}, Model(generates=True))


def answers(content: bytes, *, splits: bool = False) -> dict[str, list]:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = splits
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    pairs = [tokenizer.encode(*pair).ids for pair in PAIRS]
    return {"ids": ids, "pairs": pairs, "decoded": [tokenizer.decode(row, skip_special_tokens=True) for row in ids]}


def golden(name: str, version: str) -> dict[str, list]:
    stored = GOLDEN["5"].get(name, GOLDEN["4"][name]) if version == "5" else GOLDEN["4"][name]
    return {key: stored.get(key) for key in ("ids", "pairs", "decoded")}


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_are_those_of_the_library(name, tmp_path):
    folder = FOLDERS[name].write(tmp_path / "folder")
    result = made(folder)
    content = result.data if result.data is not None else (folder / "tokenizer.json").read_bytes()
    got = answers(content, splits="split_special_tokens" in (FOLDERS[name].config or {}))
    assert got == golden(name, "5" if name in OF_5 else "4")
    assert (golden(name, "4") != golden(name, "5")) == (name in OF_5 | ONLY_OF_4)
    (folder / "tokenizer.json").write_bytes(content)
    assert result.checked == "by rules"
    assert made(folder).data is None, "rewriting twice changes nothing"


@pytest.mark.parametrize("name", SWITCHED)
def test_the_switch_is_what_makes_them_equal(name, tmp_path):
    folder = FOLDERS[name].write(tmp_path / "folder")
    as_saved = answers((folder / "tokenizer.json").read_bytes())
    assert (as_saved == golden(name, "5" if name in OF_5 else "4")) == (
        name in UNCHANGED - {"bert split_special_tokens"}
    )


def copied(tmp_path: Path, **config: object) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = tokenizer["normalizer"]["normalizers"][0]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def convert(folder: Path, output: Path) -> list[str]:
    remarks: list[str] = []
    posexport.convert(str(folder), output, target="cpu", verify=False, remark=remarks.append)
    return remarks


def test_a_bundle_follows_tokenizer_config_json(tmp_path):
    folder = copied(tmp_path, tokenizer_class="BertTokenizer", do_lower_case=True, truncation_side="left")
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 9, "tokenizer_args": {"truncation_side": "right", "padding_side": "left"}})
    )
    remarks = convert(folder, tmp_path / "bundle")
    stored = json.loads((tmp_path / "bundle" / "tokenizer.json").read_text())
    assert stored["normalizer"]["lowercase"] is True
    assert (stored["truncation"]["direction"], stored["truncation"]["max_length"]) == ("Right", 9)
    assert stored["padding"]["direction"] == "Right", "positions are learned, and begin at the padding"
    assert any('sentence_bert_config.json says padding_side = "left"' in text for text in remarks)
    session = posexport.load(tmp_path / "bundle")
    assert session.manifest.tokenizer
    texts = Texts(tmp_path / "bundle", session.manifest)
    upper, lower = texts.rows(["HELLO World", "hello world"], truncate=False)
    assert upper.ids == lower.ids
    padded = texts.tokenize(["the quick brown fox jumps over the lazy dog", "the"], truncate=True)["input_ids"]
    whole = texts.rows(["the quick brown fox jumps over the lazy dog"], truncate=False)[0].ids
    assert padded[0].tolist() == [*whole[:8], 3]
    assert padded[1].tolist()[-2:] == [0, 0]


class Library:
    """In the place of transformers' tokenizer: one that gives the ids of a tokenizer.json."""

    all_special_tokens = ("[CLS]", "[SEP]")
    chat_template = None

    def __init__(self, content: bytes) -> None:
        self._tokenizer = Tokenizer.from_buffer(content)

    def __call__(self, *texts: str) -> dict[str, list[int]]:
        return {"input_ids": self._tokenizer.encode(*texts).ids}

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not clean_up_tokenization_spaces
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.fixture(autouse=True)
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], object]], None]:
    """Makes it seem that transformers is there."""

    def install(load: Callable[[Path], object]) -> None:
        monkeypatch.setattr(library, "is_installed", lambda: True)
        monkeypatch.setattr(library, "version", lambda: "9.9.9")
        monkeypatch.setattr(library, "quiet", contextlib.nullcontext)
        monkeypatch.setattr(library, "load", lambda at, _: load(at))

    return install


def test_compared_with_the_library(tmp_path, installed):
    folder = FOLDERS["bert do_lower_case"].write(tmp_path / "folder")
    content = made(folder).data
    installed(lambda _: Library(content))
    assert (made(folder).checked, made(folder).remarks) == ("compared with transformers 9.9.9", [])
    installed(lambda at: Library((at / "tokenizer.json").read_bytes()))
    result = made(folder)
    count = int(re.fullmatch(r"compared with transformers 9.9.9: (\d+) differ", result.checked)[1])
    assert 50 < count < 220
    assert result.remarks[0].startswith("transformers 9.9.9 (Library) gives other ids than tokenizer.json with the")

    def fail(_: Path) -> object:
        raise ValueError("no such\nclass")

    installed(fail)
    result = made(folder)
    assert result.checked == "by rules"
    assert result.remarks == [
        "transformers 9.9.9 does not load this tokenizer, so ids are by rules: no such class",
    ]


def test_a_sentencepiece_model_alone(tmp_path, installed):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    result = made(tmp_path)
    assert (result.data, result.checked) == (None, None)
    assert result.remarks == [
        "the folder has tokenizer.model and no tokenizer.json: the bundle takes ids only; for texts install the extra, "
        "pip install 'posexport[transformers]', and convert again"
    ]
    theirs = Library(json.dumps(kept("mark-bpe")).encode())
    theirs.backend_tokenizer = theirs._tokenizer
    installed(lambda _: theirs)
    result = made(tmp_path)
    assert result.checked == "compared with transformers 9.9.9"
    assert result.remarks == ["tokenizer.json was made of tokenizer.model by transformers 9.9.9"]
    assert json.loads(result.data)["model"]["type"] == "BPE"


def test_a_conversation_has_the_special_tokens_of_the_class(tmp_path):
    config = {"tokenizer_class": "LlamaTokenizer", "eos_token": {"content": "</end>"}}
    folder = Folder("mark-bpe", "llama", config).write(tmp_path / "folder")
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}")
    assert render(folder, [{"role": "user", "content": "Hello"}]) == "<s>Hello</end>"
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<begin>"}')
    assert render(folder, [{"role": "user", "content": "Hello"}]) == "<begin>Hello</end>"
    (folder / "chat_template.jinja").unlink()
    assert render(folder, []) is None


def test_the_sample_is_the_same_each_time():
    texts = sample_texts(["<s>"])
    assert len(texts) == 200
    assert texts == sample_texts(["<s>"])
    assert {"", "a", "<s>"} <= set(texts)
    assert max(len(text.split()) for text in texts) >= 1900
    assert len(sample_pairs(texts)) == 20


@pytest.mark.parametrize(
    ("name", "config", "sentence"),
    [
        ("bert", {"tokenizer_class": "RoFormerTokenizer"}, "RoFormerTokenizer splits Chinese into words by rjieba"),
        ("mbart", {"src_lang": "tlh_XX"}, "no token for the language 'tlh_XX' or no '</s>': texts get neither"),
        (
            "llama",
            {"bos_token": None, "add_bos_token": True},
            "no file names a bos_token of the vocabulary: none is added",
        ),
        (
            "bert",
            {"auto_map": {"AutoTokenizer": ["x.X", None]}},
            "names a tokenizer in Python (auto_map), which is not run",
        ),
        (
            "bert",
            {"unheard": 1, "never": 2},
            "unheard in tokenizer_config.json, never in tokenizer_config.json: unknown to",
        ),
        (
            "t5",
            {"clean_up_tokenization_spaces": True},
            "posexport.pipeline follows it, Session.generate gives texts as",
        ),
        ("gpt2", {"clean_up_tokenization_spaces": True}, "which transformers 5 ignores for byte-pair encoding"),
        ("albert", {"keep_accents": True}, "says keep_accents = true, and tokenizer.json not: it is followed"),
    ],
)
def test_remarks(tmp_path, name, config, sentence):
    kept_one = FOLDERS[name]
    folder = Folder(kept_one.base, kept_one.model_type, kept_one.config | config, kept_one.edit).write(
        tmp_path / "folder"
    )
    assert any(sentence in remark for remark in made(folder).remarks), made(folder).remarks


def test_the_pattern_of_mistral():
    """By hand: transformers asks for more than 100,000 tokens."""
    content = kept("split-bpe")
    content["model"]["vocab"] |= {f"word{number}": 1000 + number for number in range(100_001)}
    values, model = {"fix_mistral_regex": True}, {"model_type": "mistral", "transformers_version": "4.50.0"}
    for change, changed in (({}, True), ({"model_type": "llama"}, False), ({"transformers_version": "5.1.0"}, False)):
        other = json.loads(json.dumps(content))
        mistral_regex.apply(other, Settings("", values, {"fix_mistral_regex": "tokenizer_config.json"}, model | change))
        steps = other["pre_tokenizer"]["pretokenizers"]
        assert (steps[0] != content["pre_tokenizer"]["pretokenizers"][0]) == changed
        assert steps[1:] == content["pre_tokenizer"]["pretokenizers"][1:]
        Tokenizer.from_str(json.dumps(other))


def test_more_tokens_than_the_embedding_has_rows(tmp_path):
    extra = {"content": "<extra>", "special": True, "normalized": False}
    folder = copied(tmp_path, added_tokens_decoder={"300": extra}, unheard_of=1)
    remarks = convert(folder, tmp_path / "bundle")
    assert any("numbers tokens up to 300, and the model's embedding has 300 rows" in each for each in remarks)
    assert any("unheard_of in tokenizer_config.json" in each for each in remarks)
    session = posexport.load(tmp_path / "bundle")
    assert session.encode(["the fox"]).shape[0] == 1
    with pytest.raises(PosexportError, match=r"gives '<extra>' the id 300, and the model's embedding has 300 rows"):
        session.encode(["the <extra> fox"])


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"do_lower_case": "yes", "tokenizer_class": "BertTokenizer"},
            "says do_lower_case = 'yes'; it must be true or",
        ),
        ({"padding_side": "middle"}, "tokenizer_config.json says padding_side = 'middle'; it must be left or right"),
        ({"added_tokens_decoder": {"5": "x"}}, "lists 'x' under added_tokens_decoder; each must have a content"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, "lists a token under 'x' in added_tokens_decoder"),
        ({"strip_accents": "no", "tokenizer_class": "BertTokenizer"}, "says strip_accents = 'no'; it must be true or"),
    ],
)
def test_bad_values(tmp_path, config, sentence):
    with pytest.raises(PosexportError, match=sentence):
        convert(copied(tmp_path, **config), tmp_path / "bundle")


def test_truncation_and_padding_of_older_files_have_no_side(tmp_path: Path) -> None:
    """Before tokenizers 0.12 neither had a ``direction``, which is right since."""
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 128, "strategy": "LongestFirst", "stride": 0}
    tokenizer["padding"] = {"strategy": "BatchLongest", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = make_tokenizer({"tokenizer.json": tmp_path / "tokenizer.json"}, Model(cut=40))
    content = json.loads(result.data)
    assert (content["truncation"]["direction"], content["truncation"]["max_length"]) == ("Right", 40)
    assert content["padding"]["direction"] == "Right"


@pytest.mark.parametrize("change", [{"model": {}}, {"added_tokens": [{}]}, {"normalizer": "NFC"}, {"truncation": 128}])
def test_a_damaged_tokenizer_json(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads((MODEL / "tokenizer.json").read_text()) | change))
    with pytest.raises(
        PosexportError, match=r"does not read tokenizer.json .*: download it again|truncation and padding must be"
    ):
        make_tokenizer({path.name: path}, Model())


@pytest.mark.parametrize("step", [["[CLS]"], ["NFC"], []])
def test_a_step_that_is_a_list(tmp_path: Path, step: list[str]) -> None:
    """The library reads a list as the fields of an object, one after the other."""
    content = json.loads((MODEL / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content | {"normalizer": {"type": "Sequence", "normalizers": [step]}}))
    with pytest.raises(PosexportError, match=r"a step of a Sequence that is a list|does not read tokenizer.json"):
        make_tokenizer({path.name: path}, Model())


def test_an_id_that_no_model_has(tmp_path: Path) -> None:
    """The library would count to it, for half a minute, whenever it writes the file."""
    content = json.loads((MODEL / "tokenizer.json").read_text())
    content["model"]["vocab"]["far"] = 2**31
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(PosexportError, match="has a token with the id 2147483648, and ids up to 16777216 are read"):
        make_tokenizer({path.name: path}, Model())


def test_a_panic_of_the_library_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """A template of a token that the file has no id for: the library reads it, and panics at the first text."""
    content = json.loads((MODEL / "tokenizer.json").read_text())
    pieces = [{"SpecialToken": {"id": "[OTHER]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    content["post_processor"] = {
        "type": "TemplateProcessing", "single": pieces, "pair": content["post_processor"]["pair"],
        "special_tokens": {},
    }  # fmt: skip
    with pytest.raises(PosexportError, match="the tokenizer fails on these texts"):
        encoded(Tokenizer.from_str(json.dumps(content)), ["a b"])
    assert "panicked" in capfd.readouterr().err


def test_a_damaged_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "vocab.json").write_text("[1]")
    with pytest.raises(PosexportError, match=r"vocab\.json holds no vocabulary"):
        made(tmp_path)


def test_texts_are_cut_at_the_side_of_the_bundle(tmp_path: Path) -> None:
    """``truncation_side`` of sentence-transformers, against that of tokenizer_config.json."""
    folder = copied(tmp_path, truncation_side="left")
    arguments = {"max_seq_length": 9, "tokenizer_args": {"truncation_side": "right"}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(arguments))
    convert(folder, tmp_path / "bundle")
    texts = Texts(tmp_path / "bundle", posexport.load(tmp_path / "bundle").manifest)
    text = "the quick brown fox jumps"
    assert texts.cut_pieces([text], 3) == [texts.pieces(text)[:3]]


def test_split_special_tokens_of_sentence_transformers_is_not_followed(tmp_path: Path) -> None:
    """The runtime reads tokenizer_config.json alone."""
    folder = copied(tmp_path)
    arguments = {"tokenizer_args": {"split_special_tokens": True}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(arguments))
    assert any(
        "the bundle does not follow it; set it in tokenizer_config.json" in each for each in made(folder).remarks
    )
