"""Models: loading, running by plan, token logprobs, packaged weights."""
