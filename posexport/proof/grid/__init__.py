"""The points at which models are proven, and the inputs at each."""
