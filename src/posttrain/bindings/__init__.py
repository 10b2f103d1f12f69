"""What an option names, bound to an object."""
