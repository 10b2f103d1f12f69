"""A training run on disk and in time: its session, signals, trackers and callbacks."""
