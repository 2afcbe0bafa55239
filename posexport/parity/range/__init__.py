"""How near the values of a float16 graph come to its largest number, and which of them are beyond it."""
