"""Shared option forms of recipes, their checks, and loading of what they name."""
