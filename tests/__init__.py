"""Tests mirror src: `tests/<room>/test_<file>.py`."""

from tests import typechecker as typechecker  # pytest's shape checks look it up as an attribute of this package
