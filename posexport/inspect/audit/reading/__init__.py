"""Reads files of strangers: every size, offset and path is checked before it is used."""
