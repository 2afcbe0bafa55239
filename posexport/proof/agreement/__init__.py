"""The cost of a precision: cosines with float32, and how often the best class is the same. Figures, not verdicts."""
