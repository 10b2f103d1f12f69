"""`posttrain jobs`: training as a service."""
