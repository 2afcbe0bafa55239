"""Static scales of activations, measured on texts: one for each tensor, with a zero point and per-channel smoothing."""
