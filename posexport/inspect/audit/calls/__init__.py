"""Calls of an untrusted graph in a child process with limits, and what should be the same in several calls."""
