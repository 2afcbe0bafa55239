"""Parity in the tests of your project: a function to assert it, and a pytest plugin. Imports nothing heavy.

The plugin is `posexport.testing.plugin`; pytest loads it wherever posexport is installed.
"""

from posexport.testing.parity import assert_parity as assert_parity

__all__ = ["assert_parity"]
