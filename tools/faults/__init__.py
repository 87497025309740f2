"""A campaign against the job: it is killed at random moments and its files are damaged; nothing may be lost."""
