"""Replays: synchronous, asynchronous and federated training at the speeds that a trace recorded."""
