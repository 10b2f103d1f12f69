"""The engines: requests in, completions out."""
