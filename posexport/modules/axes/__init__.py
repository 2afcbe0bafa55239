"""The axes of a user's module, found by running it on its example grown and shrunk one axis at a time."""
