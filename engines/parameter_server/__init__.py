"""The asynchronous server as a service: calls from many threads, and records of its rounds."""
