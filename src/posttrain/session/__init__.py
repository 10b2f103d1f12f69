"""Training sessions: resume, signals, progress, trackers, callbacks."""

from posttrain.session.progress import Progress, announce

__all__ = ["Progress", "announce"]
