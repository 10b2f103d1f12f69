"""A whole program in a box."""

import tempfile
from dataclasses import dataclass

from posttrain.sandbox.box import DEFAULT, Box, Limits, Stop, read
from posttrain.sandbox.isolation import Sandbox


@dataclass(frozen=True)
class Ran:
    """What a program did."""

    output: str
    error: str
    """The end of what it wrote to its standard error, such as a traceback."""
    stopped: Stop | None
    """The limit at which it was stopped."""
    ended: str
    """How it ended, in words; "" if by itself and with exit status 0."""


def run_program(source: str, stdin: str = "", *, limits: Limits = DEFAULT, sandbox: Sandbox = "bubblewrap") -> Ran:
    """Run a Python program, of the standard library alone, in a box of its own.

    Args:
        source: its text.
        stdin: what it reads from its standard input.
        limits: of CPU, memory, output, files and time.
        sandbox: "none" runs it without isolation.

    Raises:
        UserError: programs cannot be isolated on this machine, with cause and remedy.
        SandboxError: the box did not start.
    """
    with tempfile.TemporaryFile() as file:
        file.write(stdin.encode(errors="surrogatepass"))
        file.seek(0)
        with Box("program", {"source": source}, limits, sandbox, stdin=file) as box:
            pipes = [pipe.fileno() for pipe in (box.process.stdout, box.process.stderr) if pipe]
            output, error = (part.decode(errors="replace") for part in read([box], pipes))
            how = "" if box.process.poll() == 0 and not box.stopped else box.ended()
    return Ran(output, error[-2000:], box.stopped, how)
