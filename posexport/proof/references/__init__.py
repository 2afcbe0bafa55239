"""Sources of right values: the definition, run by PyTorch in two precisions."""
