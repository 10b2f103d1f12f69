"""Evaluation with confidence intervals."""
