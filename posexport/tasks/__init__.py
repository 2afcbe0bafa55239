"""What a model is for: one file for each task, listed in `posexport.tasks.registry`. Imports nothing heavy."""
