"""Exports by other tools, run in their own environments: no import but theirs."""
