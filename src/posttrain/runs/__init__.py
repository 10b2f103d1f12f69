"""Training runs: sessions, signals, trackers, callbacks."""
