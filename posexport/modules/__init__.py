"""Modules that know nothing of posexport: inputs, axes, limits, recognition of attention, a KV cache."""
