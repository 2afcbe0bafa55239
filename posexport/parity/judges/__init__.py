"""What decides: on values by the criterion, a user's tolerance or a stored one, and on inputs beyond the limits."""
