"""The sample in a bundle: stored during the proof, and the reference of `verify` without PyTorch."""
