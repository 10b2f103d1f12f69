"""Options, each declared once: groups that forms inherit, and the form of each command."""
