"""Rollouts: inference engines, and the driver of concurrent episodes."""
