"""One page about a bundle: its proof, positions, kernels, speed, answers and commands."""
