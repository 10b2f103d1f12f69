"""Out of posttrain: a folder that other tools load, checked against what was trained."""
