"""Recipes: loops that are read from top to bottom."""
