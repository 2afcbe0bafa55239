"""What a device would wait for, computed on the host or written in another way."""
