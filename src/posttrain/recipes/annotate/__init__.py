"""`posttrain annotate`: human feedback."""
