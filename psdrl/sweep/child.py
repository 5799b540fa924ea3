"""`python -m psdrl.sweep.child MODULE ARGUMENTS`: `python -m MODULE ARGUMENTS`, ended when its parent is gone.

The parent holds the other end of stdin. If it dies, however it dies, the pipe closes and this process kills itself: a
run that nobody watches would hold the lock of its directory, and a second one could not go on from its checkpoints.
What is lost is what a kill loses: the steps since the last checkpoint, which are made again bit for bit."""

import os
import runpy
import signal
import sys
import threading


def watch() -> None:
    """Until the parent is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the module as if it had been started itself."""
    threading.Thread(target=watch, name="parent", daemon=True).start()
    module = sys.argv[1]
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
