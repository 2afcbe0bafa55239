"""Feature extractors: sound as ``input_values`` or ``input_features``, as preprocessor_config.json says. NumPy."""
