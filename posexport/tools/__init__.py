"""What is made of bundles and encodings beside converting: pictures, comparisons, benchmarks, explanations."""
