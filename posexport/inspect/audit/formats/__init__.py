"""Findings as text, JSON, SARIF and annotations of GitHub."""
