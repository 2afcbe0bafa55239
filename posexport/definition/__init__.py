"""The interface of a model definition: inputs, outputs, lengths, guarantees, and the graphs it is exported as."""
