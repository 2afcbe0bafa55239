"""What a model says of itself beside computing: inputs, outputs, lengths, promises, the graphs it is exported as."""
