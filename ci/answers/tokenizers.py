"""Tokenizers: ids of texts and pairs, decoded texts and conversations, for every tokenizer class and its switches."""

import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.answers.case import Case
from ci.answers.tokenizer_folders.ask import theirs
from ci.answers.tokenizer_folders.bases import CORPUS
from ci.answers.tokenizer_folders.folders import FOLDERS, PLAIN
from ci.answers.tokenizer_folders.texts import PAIRS, TEXTS

PART = "tokenizers"
EMBEDDER = Path(__file__).parents[2] / "tests" / "embedders" / "bert-mean" / "model"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "  Héllo\n <s> there"}]


def cases(work: Path) -> Iterator[Case]:
    """A row for each folder, for each as the library saves it again, and for folders with a SentencePiece model."""
    for name, folder in FOLDERS.items():
        yield _asked(name, folder.write(work / "made" / name), _splits(folder.config))
    for name in PLAIN:
        if (saved := _saved(work / "made" / name, work / "saved" / name)) is not None:
            yield _asked(f"{name}, saved again", saved, splits=False)
    for name, folder in _sentencepiece(work / "sentencepiece"):
        yield _asked(name, folder, splits=False)
    yield from _chats(work / "chats")
    yield from _embeddings(work / "embedder")


def _splits(config: dict[str, Any] | None) -> bool:
    return bool((config or {}).get("split_special_tokens"))


def _asked(name: str, folder: Path, splits: bool) -> Case:
    from posexport.run.tokenizer.make import Model, make_tokenizer

    result = make_tokenizer({path.name: path for path in folder.iterdir() if path.is_file()}, Model(generates=True))
    stored = folder / "tokenizer.json"
    data = stored.read_bytes() if result.data is None and stored.exists() else result.data
    wanted = theirs(folder)
    got = {"error": "no tokenizer.json"} if data is None else _ours(data, splits)
    other = {key: value for key, value in wanted.items() if key != "class" and value != got.get(key)}
    return Case(
        part=PART,
        asked=f"{name}: {len(TEXTS)} texts, {len(PAIRS)} pairs, decoding",
        library=f"transformers {version('transformers')}",
        ours={key: got.get(key) for key in other} or "the same",
        theirs=other or wanted.get("class"),
        equal=not other,
        remark="; ".join(result.remarks) if other else "",
    )


def _ours(data: bytes, splits: bool) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = splits
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    return {"ids": ids, "pairs": [tokenizer.encode(*pair).ids for pair in PAIRS], "decoded": decoded}


def _saved(folder: Path, into: Path) -> Path | None:
    """The folder as ``save_pretrained`` of the installed version writes it."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ValueError:
        return None
    tokenizer.save_pretrained(into)
    shutil.copyfile(folder / "config.json", into / "config.json")
    return into


def _sentencepiece(into: Path) -> Iterator[tuple[str, Path]]:
    """Folders whose tokenizer is a SentencePiece model alone."""
    import sentencepiece

    into.mkdir(parents=True)
    (into / "corpus.txt").write_text("\n".join(CORPUS * 20), encoding="utf-8")
    kinds = {
        "llama": ("bpe", "tokenizer.model", "LlamaTokenizer", {"byte_fallback": True, "vocab_size": 620}),
        "t5": ("unigram", "spiece.model", "T5Tokenizer", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
        "xlm-roberta": ("unigram", "sentencepiece.bpe.model", "XLMRobertaTokenizer", {}),
        "gemma": (
            *("bpe", "tokenizer.model", "GemmaTokenizer"),
            {
                "byte_fallback": True,
                "vocab_size": 620,
                "pad_id": 0,
                "eos_id": 1,
                "bos_id": 2,
                "unk_id": 3,
                "pad_piece": "<pad>",
                "bos_piece": "<bos>",
                "eos_piece": "<eos>",
                "add_dummy_prefix": False,
            },
        ),
    }
    for name, (model, file, class_name, more) in kinds.items():
        folder = into / name
        folder.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(into / "corpus.txt"),
            model_prefix=str(folder / "m"),
            model_type=model,
            hard_vocab_limit=False,
            minloglevel=2,
            **{"vocab_size": 300, "character_coverage": 0.98, **more},
        )
        (folder / "m.model").rename(folder / file)
        (folder / "m.vocab").unlink()
        (folder / "config.json").write_text(json.dumps({"model_type": name}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
        yield f"{name}, {file} alone", folder


def _chats(into: Path) -> Iterator[Case]:
    """Special tokens of a template that a file names, and those that only the class has."""
    from transformers import AutoTokenizer

    from posexport.conversion.tokenizer import render

    for name in ("llama", "llama 3", "qwen2"):
        for named in (True, False):
            folder = FOLDERS[name].write(into / f"{name} {named}")
            (folder / "chat_template.jinja").write_text(TEMPLATE)
            path = folder / "tokenizer_config.json"
            config = json.loads(path.read_text())
            kept = {key: value for key, value in config.items() if named or not key.endswith("_token")}
            path.write_text(json.dumps({**kept, "chat_template": TEMPLATE}))
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            wanted = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
            got = render(folder, CHAT)
            yield Case(
                part=PART,
                asked=f"{name}: a conversation, special tokens named by {'a file' if named else 'the class'}",
                library=f"transformers {version('transformers')}",
                ours=got,
                theirs=wanted,
                equal=got == wanted,
            )


def _embeddings(into: Path) -> Iterator[Case]:
    """Arguments that sentence-transformers hands on, and its own."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    import posexport

    texts = ["The quick brown fox jumps over the lazy dog and runs away", "HELLO World", "a"]
    for number, settings in enumerate(
        (
            {"max_seq_length": 9, "tokenizer_args": {"truncation_side": "left"}},
            {"max_seq_length": 9, "processor_kwargs": {"truncation_side": "left", "padding_side": "left"}},
            {"processor_kwargs": {"model_max_length": 7}},
            {"max_seq_length": 12, "do_lower_case": True},
        )
    ):
        folder = into / str(number)
        shutil.copytree(EMBEDDER, folder)
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        path = folder / "tokenizer_config.json"  # saved by transformers 5; this class is in both versions
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
        remarks: list[str] = []
        posexport.convert(str(folder), into / f"{number}.bundle", verify=False, remark=remarks.append)
        got = posexport.load(into / f"{number}.bundle").encode(texts, truncate=True)
        wanted = SentenceTransformer(str(folder), device="cpu").encode(texts)
        error = float(np.abs(got - wanted).max())
        yield Case(
            part=PART,
            asked=f"sentence_bert_config.json {json.dumps(settings)}: 3 vectors",
            library=f"sentence-transformers {version('sentence-transformers')}",
            ours=f"largest difference {error:.1e}",
            theirs=f"largest element {float(np.abs(wanted).max()):.2f}",
            equal=error < 1e-5,
        )
