"""Templates of the files that `posexport deploy` writes: a folder for each engine, ``.jinja`` files."""
