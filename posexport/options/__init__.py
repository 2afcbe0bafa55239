"""Options: what is said of one where it is written, the recipe that records them, values and suggestions of words."""
