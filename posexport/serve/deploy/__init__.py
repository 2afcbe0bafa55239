"""`posexport deploy`: files that run a bundle in an engine, from one folder of templates each. Imports no torch."""
