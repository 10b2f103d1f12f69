"""Rewards from a model that is asked: an LLM as a judge."""
