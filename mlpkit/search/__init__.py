"""A search for a good recipe: many trainings, in many processes, of which none is lost and none is done twice.

A study is a TOML file: see `study`. Optuna proposes what to try, and keeps each result in a database, which one process
alone reads and writes, the client: `run`. Dask has workers train, each a process with its GPU, or with one thread:
`cluster`. What a worker does is a function without memory, `task.train_to`, so whoever it is given to, and how often,
its result is the same.
"""
