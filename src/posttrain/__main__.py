"""`python -m posttrain` is the command line."""

import atexit
import gc
import os
import sys
import threading
from typing import NoReturn

from posttrain.cli import main

PATIENCE_S = 10.0  # for threads that are left when the command is done


def run() -> NoReturn:
    """Run a command, and end the process with its exit code, whatever threads the module of a reward may have."""
    code, ended = main(), threading.Event()
    atexit.register(ended.set)  # called when no thread is waited for any more

    def end() -> None:
        if ended.wait(PATIENCE_S):
            return
        left = [each.name for each in threading.enumerate() if not each.daemon and each != threading.main_thread()]
        print(f"posttrain: ends without {', '.join(left) or 'a thread'}, which does not end", file=sys.stderr)
        atexit._run_exitfuncs()  # such as those that end other processes
        sys.stdout.flush()
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
    gc.freeze()  # or the interpreter walks all objects of all libraries once more as it ends: a second
    sys.exit(code)


if __name__ == "__main__":
    run()
