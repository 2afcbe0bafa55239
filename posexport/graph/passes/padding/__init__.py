"""Batches with padding at the price of their real tokens."""
