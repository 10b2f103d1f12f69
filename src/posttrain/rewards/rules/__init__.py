"""Rules: what a completion looks like, whatever it says. One file each."""
