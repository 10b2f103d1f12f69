"""Export to folders that other tools load, checked against the trained model."""
