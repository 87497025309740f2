"""Observes a training: progress lines, metric lines and the report, views of one history; and where loggers send to.

``history`` holds what was observed, ``rates`` counts batches, ``progress`` and ``metrics`` write lines, ``stalls``
finds a training that waits, ``report`` with ``page`` and ``figures`` makes the page; ``mlflow`` and ``wandb`` let a
restarted job go on in its run, ``upload`` sends TensorBoard's files to S3.
"""
