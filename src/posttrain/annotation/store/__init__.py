"""The annotation database: users, items, assignments, annotations, audit log."""
