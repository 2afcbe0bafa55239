"""Image processors: pictures as ``pixel_values``, as preprocessor_config.json says. NumPy and Pillow."""
