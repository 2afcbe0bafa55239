"""Model definitions, short enough to read and to copy. Each takes an encoding object, not flags."""
