"""Rewrites of what surrounds attention: the same numbers by fewer or faster operators. Imports no torch."""

from posexport.rewrites.pipeline import apply as apply
