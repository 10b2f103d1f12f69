"""A server of training jobs: clients send a command, a model's name, data and a reward, and get a trained model.

routes.py           routes
bodies.py           what a client sends; its rows are read one by one
specification.py    the files of a job, from what its client sent, and the options that it may set
table.py            what is known of jobs: a SQLite table
processes.py        the process of a job, which outlives the server; its logs, metrics and results
services.py         which process runs next, and what follows when one has ended
"""
