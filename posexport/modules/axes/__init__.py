"""Finds the axes of a user's module by calls with its example in other sizes, one axis at a time."""
