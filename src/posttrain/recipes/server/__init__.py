"""`posttrain server`: train and sample for clients of the Tinker SDK."""
