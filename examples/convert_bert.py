"""Convert a BERT checkpoint, read the proof, and compare two sentences.

Usage: python examples/convert_bert.py [CHECKPOINT] [BUNDLE]

CHECKPOINT is a folder or a Hub id; BUNDLE is where the result goes.
"""

import sys

import numpy as np

import posexport

SENTENCES = ["The cat sleeps on the warm stove.", "A kitten is napping by the oven."]


def main(checkpoint: str = "sentence-transformers/all-MiniLM-L6-v2", bundle: str = "minilm") -> None:
    conversion = posexport.convert(checkpoint, bundle, force=True, remark=print)
    print(conversion.to_text())
    if not conversion.good:
        sys.exit(1)

    session = posexport.load(bundle)
    first, second = session.encode(SENTENCES)
    cosine = first @ second / (np.linalg.norm(first) * np.linalg.norm(second))
    print(f"cosine similarity: {cosine:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
