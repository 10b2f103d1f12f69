"""Plan of a run on a cluster of GPUs: a cost model, and a discrete-event simulation on it."""
