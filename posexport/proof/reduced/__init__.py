"""Proofs of large models: the grid on a reduced model, the full model by its structure, weights and a few calls."""
