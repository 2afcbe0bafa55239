"""optimum's graph in the same engines, as their own documentation would have it: the engine's batching, by requests.

Texts are padded to the longest of a batch, the graph gives hidden states, and their mean over tokens, divided by its
length, is the vector: the modules of all-MiniLM-L6-v2.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

#: texts that an engine joins, and how long one waits for others
JOINED, SECONDS = 32, 0.005


class Plain:
    """Tokenizer, session and pooling."""

    def __init__(self, folder: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(Path(folder) / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding()

    def encode(self, texts: list[str]) -> np.ndarray:
        rows = self._tokenizer.encode_batch(texts)
        return self.run(np.array([row.ids for row in rows]), np.array([row.attention_mask for row in rows]))

    def run(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(["last_hidden_state"], feeds)
        summed = (states * mask[..., None]).sum(1)
        vectors = summed / mask.sum(1, keepdims=True)
        unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        return unit.astype(np.float32)
