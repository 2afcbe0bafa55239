"""Encodings of posexport in the place of submodules of a user's module, compared with these in float64."""
