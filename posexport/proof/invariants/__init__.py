"""What must hold between several runs of a model, whatever their values are."""
