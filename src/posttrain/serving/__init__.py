"""A server of the Tinker API: training and sampling of LoRA adapters for clients that speak it.

app/          routes, guards
wire.py       protobuf messages of the SDK
losses.py     losses by the names that clients send
trainer.py    one client's adapter: gradients and optimiser
together.py, joint_requests.py   gradients of several adapters in one pass, and which requests these are
decoder.py    sampling from all adapters in one batch
runs.py       what a client has asked of its model, in order
worker.py     the thread that computes
journal.py    accepted requests and their results on disk
checkpoints.py, samplers.py, keys.py
jobs/         another server, of whole training runs
"""
