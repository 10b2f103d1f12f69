"""Where what people say is kept: a database of people, items, work given out, judgements, and who did what when."""
