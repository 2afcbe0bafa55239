"""Folders with tokenizers of every class that posexport's families use, for ci/answers/tokenizers.py and the tests.

``parts()`` in ci/answers/run.py lists modules; this package has no ``cases``, so it is no part.
"""
