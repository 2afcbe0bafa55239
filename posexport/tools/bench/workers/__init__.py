"""Modules that measure one candidate in a fresh process; those of third-party libraries are in ``ci/rivals/workers``.

Some run in an exporter's environment: they import nothing but numpy and the candidate's own library.
"""
