"""An entry point that runs two programs, one after the other, and hands on what it is told by signals."""

import os
import runpy
import signal
import sys

_MODULES = ("tools.faults.pretrain", "tools.faults.finetune")


class _Child:
    """The program that runs.

    It is forked from this process, which has imported nothing of the package, so that a start costs milliseconds.
    """

    pid = 0
    stopped = False

    def stop(self, *_):
        self.stopped = True
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)


def _run(child, module):
    """Run a module in a process of its own; return its exit code, or as a shell says what signal ended it."""
    # A signal must meet either the parent that knows its child, or the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child.pid = os.fork()
    if child.pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        sys.argv[0] = module
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(child.pid, 0)
    child.pid = 0
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main():
    """Run the programs until one does not end with 0, or until this process is asked to stop."""
    child = _Child()
    signal.signal(signal.SIGTERM, child.stop)
    for module in _MODULES:
        code = _run(child, module)
        if code:
            return code
        if child.stopped:
            return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    sys.exit(main())
