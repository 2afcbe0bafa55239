"""Writes a tiny model and its vectors as the installed sentence-transformers does: ``versions.py DIRECTORY``.

Each version writes names of modules, the pooling and its own settings otherwise; tests/embedder_versions has a folder
of each, which must be read. Run it in an environment of every version in turn (2.7.0, 3.4.1, 4.1.0 and 5.1.2 with
transformers 4.57.6, 6.2.0 with 5.24.0). DIRECTORY/VERSION gets ``model``, ``texts.json`` and ``answers.npz``: vectors
without a prompt and with the prompt ``query``.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import sentence_transformers
import torch
import transformers
from corpus import texts, wordpiece
from sentence_transformers import SentenceTransformer, models

WIDTH, OUT = 12, 7


def main(root: Path) -> None:
    target = root / sentence_transformers.__version__
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    corpus = texts()
    tokenizer = wordpiece(corpus)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_attention_heads=3,
        num_hidden_layers=1,
        intermediate_size=17,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    rng = np.random.default_rng(40)
    model = transformers.BertModel(config)
    with TemporaryDirectory() as plain:
        for parameter in model.parameters():
            parameter.data.copy_(torch.from_numpy(0.4 * rng.standard_normal(tuple(parameter.shape), dtype=np.float32)))
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        transformer = models.Transformer(plain, max_seq_length=40, do_lower_case=False)
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    dense = models.Dense(2 * WIDTH, OUT, activation_function=torch.nn.Tanh())
    for parameter in dense.parameters():
        parameter.data.copy_(torch.from_numpy(0.4 * rng.standard_normal(tuple(parameter.shape), dtype=np.float32)))
    modules = [transformer, models.Pooling(WIDTH, **both), dense, models.Normalize()]
    made = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "Ba ce: "})
    made.save(str(target / "model"))
    (target / "model" / "README.md").unlink(missing_ok=True)
    asked = [text for text in corpus if len(text) < 300][:6]
    (target / "texts.json").write_text(json.dumps(asked, indent=0))
    vectors = {"plain": made.encode(asked), "query": made.encode(asked, prompt_name="query")}
    np.savez_compressed(target / "answers.npz", **vectors)
    print(target, {name: value.shape for name, value in vectors.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
