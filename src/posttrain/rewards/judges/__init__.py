"""LLM judges as rewards."""
