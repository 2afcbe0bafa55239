"""Pictures of position encodings, one kind a file; matplotlib is imported only when one is drawn."""
