"""What is checked: the points, and the inputs drawn at each."""
