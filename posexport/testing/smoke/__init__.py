"""Tests that come with the package: ``python -m pytest --pyargs posexport.testing.smoke``."""
