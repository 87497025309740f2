"""When a job has to stop, how all ranks come to know, and what is saved then."""
