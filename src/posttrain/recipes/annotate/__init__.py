"""`posttrain annotate`: feedback by people."""
