"""Episodes: seats, sampling of groups, scoring."""
