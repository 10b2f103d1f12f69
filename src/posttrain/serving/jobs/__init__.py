"""A server of training jobs: clients send a command, a model's name, data and a reward, and get a trained model.

app.py, routes.py   routes
bodies.py           what a client sends
options.py          the options of commands that a client may set
specification.py    the files of a job, from what its client sent
record.py, store.py jobs on disk
queue.py            which job runs next; what became of those that ran
processes.py        the processes of jobs, which outlive the server
supervisor.py       the process that runs one job and says how it ended
reading.py          logs, metrics and results, read without following links
"""
