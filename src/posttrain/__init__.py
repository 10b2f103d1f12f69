"""posttrain: the whole post-training loop of a language model."""

__version__ = "0.1.0"
