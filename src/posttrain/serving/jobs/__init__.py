"""A server of training jobs: clients send a command, a model's name, data and a reward, and get a trained model.

routes.py           routes
specification.py    what a client sends, the options that it may set, and the files of a job
table.py            what is known of jobs: a SQLite table
processes.py        the process of a job, which outlives the server; its logs, metrics and results
services.py         which process runs next, and what follows when one has ended
"""
