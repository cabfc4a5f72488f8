"""Training: data, models, the job that a loop is written with, checkpoints, records, and our own loop on top."""
