"""From options to parts: option forms that recipes share, their checks, and what they name, loaded."""
