"""One page about a bundle: its proof, positions, kernels, speed, outputs for texts and commands."""
