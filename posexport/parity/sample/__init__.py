"""The sample in a bundle: gathered by the proof, and a reference of its own where there is no PyTorch."""
