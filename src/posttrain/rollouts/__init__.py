"""Rollouts: engines that sample from a policy, and the driver that lets many episodes share one."""
