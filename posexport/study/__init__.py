"""Encodings side by side, and pictures of them."""
