"""Verifiers: whether a completion solves its task. One file each."""
