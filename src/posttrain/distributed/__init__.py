"""Learners of several processes: ranks over torch.distributed, placed by Ray."""
