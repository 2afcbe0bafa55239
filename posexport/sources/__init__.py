"""Where models come from: built-in names, Python files, Hugging Face directories."""
