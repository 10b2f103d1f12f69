"""A server of the Tinker API: training and sampling of LoRA adapters for clients that speak it.

app.py, training_routes.py, guard.py, http_server.py   routes, and who may ask how much
wire.py, losses.py    protobuf messages of the SDK; datums and losses by the names that clients send
trainer.py            one client's adapter: gradients and optimiser
together.py           gradients of several adapters in one pass, and which requests these are
base.py               the base model, adapters on it, and sampling from all of them in one batch
runs.py               what a client has asked of its model, in order; run.py has it on disk, operations.py does it
services.py           all parts together, and the thread that computes
checkpoints.py        named checkpoints, and sampling sessions
access.py             keys, sessions and limits
jobs/                 another server, of whole training runs
"""
