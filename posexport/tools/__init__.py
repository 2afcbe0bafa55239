"""Pictures, comparisons, benchmarks and explanations of bundles and encodings."""
