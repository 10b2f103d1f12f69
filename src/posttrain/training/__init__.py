"""Training-loop components."""
