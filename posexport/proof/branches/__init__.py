"""Which branches of the graph run, and the points that run all of them."""
