"""What a bundle's attention and positions are computed by, and what they cost."""
