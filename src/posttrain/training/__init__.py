"""Parts of a training loop, as functions: the loop itself belongs to a recipe."""
