"""Convert a decoder with a static KV cache, generate a batch, and stream one text.

Usage: python examples/generate.py [CHECKPOINT] [BUNDLE]

CHECKPOINT is a folder or a Hub id of a decoder with a tokenizer.
"""

import sys

import posexport


def main(checkpoint: str = "HuggingFaceTB/SmolLM2-135M-Instruct", bundle: str = "smollm") -> None:
    posexport.convert(checkpoint, bundle, cache="static", lengths=[1, 17], force=True)

    session = posexport.load(bundle)
    generation = session.generate(["Once upon a time", "The cat"], max_new_tokens=20)
    for completion in generation.completions:
        print(repr(completion.text))

    sampled = posexport.GenerationConfig(max_new_tokens=20, temperature=0.8, top_p=0.9, seed=7)
    for piece in session.stream("Once upon a time", sampled):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
