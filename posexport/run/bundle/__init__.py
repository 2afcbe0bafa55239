"""The directory a conversion writes: its manifest, how it gets into place whole, and how it is read back."""
