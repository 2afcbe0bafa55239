"""Tasks of models, one file each, listed in `posexport.tasks.registry`. Imports nothing heavy."""
