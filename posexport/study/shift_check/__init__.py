"""What happens to an encoding when positions move: each property that it claims, checked, with the figure."""
