"""The kernels that compute a bundle's attention and positions, and their cost."""
