"""Inside the processes of a script under audit: what is recorded, exchanged and switched off there."""
