"""Mutants that nobody wrote: a sample of each night, of every file whose room has no list in `tests/mutations`.

python -m tests.generated_mutants [--seed N] [--sample N] [--minutes N] [--files WORD ...]
"""
