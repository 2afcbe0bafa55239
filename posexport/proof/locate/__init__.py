"""Where in the model a wrong output starts."""
