"""What says what is right: the definition, run by PyTorch in two precisions, and the sample that a bundle carries."""
