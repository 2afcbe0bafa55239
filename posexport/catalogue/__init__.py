"""What ``posexport list`` shows: read off the registries, or from a file, a copy of them that needs no PyTorch."""
