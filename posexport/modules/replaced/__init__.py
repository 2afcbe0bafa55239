"""Replaces submodules of a user's module by encodings of posexport, and compares both in float64."""
