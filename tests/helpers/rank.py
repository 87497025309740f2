"""One rank of a job whose program is a module of these tests: ``python -m tests.helpers.rank MODULE FOLDER ARGUMENTS``.

The module's ``main`` gets the folder and the arguments; what it returns is this rank's result (:meth:`Job.results`).
"""

import importlib
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # The folder is another one in each start of a job, whose restarts have the same arguments.
    (module, folder, *arguments), sys.argv[1:] = sys.argv[1:], []
    result = importlib.import_module(module).main(folder, *arguments)
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else os.environ["RANK"]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(result))
