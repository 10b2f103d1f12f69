"""Rules: rewards of format and style. One file each."""
