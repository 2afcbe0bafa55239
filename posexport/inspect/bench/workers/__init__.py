"""Modules that measure one candidate in a fresh process; ``ci/lab/rivals/workers`` has the modules for other libraries.

Some run in an exporter's environment: they import nothing but numpy and the candidate's library.
"""
