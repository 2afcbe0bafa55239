"""Tasks of models, one file each, listed in `posexport.base.tasks.registry`. Imports nothing heavy."""
