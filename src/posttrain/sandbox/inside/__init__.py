"""What runs in boxes: our side of the programs. Standard library alone; nothing here knows of the caller."""
