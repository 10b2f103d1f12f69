"""Evaluation: what a policy can do, with intervals."""
