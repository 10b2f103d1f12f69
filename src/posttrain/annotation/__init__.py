"""Feedback by people: what they are asked, what they say, and what they say together."""
