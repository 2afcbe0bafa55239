"""Modules that measure one candidate in a fresh process; ``ci/lab/rivals/workers`` has those of other libraries.

Some run in an exporter's environment: they import nothing but numpy and the candidate's library.
"""
