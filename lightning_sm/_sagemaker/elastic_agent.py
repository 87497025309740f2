"""``ElasticAgent``: what HyperPod's elastic agent, ``hyperpodrun``, tells the processes that it starts."""

import os
from dataclasses import dataclass
from typing import Mapping, Optional

from lightning_sm._sagemaker.json_input import read_count

__all__ = ["ElasticAgent"]

_SOCKET = "HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH"
_COORDINATION = "HYPERPOD_SIGNAL_COORDINATION"


@dataclass(frozen=True)
class ElasticAgent:
    """HyperPod's elastic agent as it describes itself to a worker. Read it with :meth:`resolve`.

    Environment variables, set by ``hyperpodrun`` for each worker:

    ``HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH``
      The agent's socket. Its presence tells ``hyperpodrun`` from ``torchrun``, whose other variables are the same.

    ``HYPERPOD_SIGNAL_COORDINATION``
      ``distributed`` in a job with an elastic policy: the workers agree on SIGUSR1, before the job is scaled.
      ``disabled`` otherwise.

    ``JOB_RESTART_COUNT``
      How often the workers of this job have been started again; ``faultCount`` of the training operator.

    Source: ``hyperpod_elastic_agent/elastic_agent/hyperpod_elastic_agent.py`` and ``elastic_event_handler.py`` of
    hyperpod-elastic-agent 1.1.3.

    Args:
        socket_path: The agent's socket.
        coordination: ``distributed`` or ``disabled``.
        restart_count: How often the workers have been started again.

    Example::

        >>> agent = ElasticAgent.resolve(
        ...     {"HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH": "/tmp/a", "HYPERPOD_SIGNAL_COORDINATION": "distributed"}
        ... )
        >>> agent.has_events, agent.restart_count
        (True, 0)
        >>> ElasticAgent.resolve({"TORCHELASTIC_RUN_ID": "none"}) is None
        True
    """

    socket_path: str
    coordination: str = "disabled"
    restart_count: int = 0

    @classmethod
    def resolve(cls, environ: Optional[Mapping[str, str]] = None) -> "Optional[ElasticAgent]":
        """Read what the agent has set; ``None`` where this process is not started by ``hyperpodrun``.

        Args:
            environ: The environment variables instead of ``os.environ``.

        Raises:
            JobConfigError: ``JOB_RESTART_COUNT`` is no count.
        """
        environ = os.environ if environ is None else environ
        path = environ.get(_SOCKET)
        if not path:
            return None
        coordination = environ.get(_COORDINATION, "disabled").lower()
        return cls(path, coordination, read_count(environ, "JOB_RESTART_COUNT") or 0)

    @property
    def has_events(self) -> bool:
        """Whether the workers are asked to save and exit before the job is scaled."""
        return self.coordination == "distributed"
