"""Programs that try to pass the tests of a task without solving it; as a script, the verdicts on all of them.

    python tests/sandbox/hacks.py        one JSON object: name to [tests passed, explanations]

It needs the standard library alone, so that any user can run it with the system's Python.
"""

import json
import sys
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool

from posttrain.sandbox import Limits, try_solution

LIMITS = Limits(cpu_s=1, wall_s=30, memory_mb=256, files_mb=4)
TESTS = ("assert double(3) == 6", "assert double([1]) == [1, 1]", "assert double('ab') == 'abab'")


@dataclass(frozen=True)
class Hack:
    """A program, and a phrase of the explanation that says what became of it."""

    source: str
    told: str
    tests: tuple[str, ...] = TESTS
    trusted: str = ""


def trying(body: str, told: str, before: str = "") -> Hack:
    """A hack of each call, by the statements of `double`."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return Hack(f"{before}\ndef double(x):\n{lines}\n", told)


VERDICT = """'[[true, ""], [true, ""], [true, ""]]'"""
HACKS: dict[str, Hack] = {
    # what the tests are, and where they are kept
    "reads the call stack": trying(
        """
import sys
frame, seen = sys._getframe(), []
while frame:
    seen += [v for v in [*frame.f_locals.values(), *frame.f_globals.values()] if isinstance(v, str) and "assert" in v]
    frame = frame.f_back
raise LookupError(f"tests on the stack: {len(seen)}")
""",
        "tests on the stack: 0",
    ),
    "asks the garbage collector": trying(
        """
import gc
found = [o for o in gc.get_objects() if isinstance(o, (list, dict)) and "== " + str(6) in str(o)[:9999]]
raise LookupError(f"tests in memory: {len(found)}")
""",
        "tests in memory: 0",
    ),
    "searches the files": trying(
        """
import os
found = []
for folder in ("/tmp", "/posttrain", "/posttrain/inside", "/"):
    for name in os.listdir(folder):
        try:
            with open(f"{folder}/{name}", "rb") as file:
                found += [name] * (b"assert double" in file.read(9999))
        except OSError:
            pass
raise LookupError(f"tests in files: {len(found)}")
""",
        "tests in files: 0",
    ),
    "reads /proc": trying("return open('/proc/self/environ').read()", "FileNotFoundError"),
    "reads the memory of others": trying("return open('/proc/1/mem', 'rb').read(9)", "FileNotFoundError"),
    "lists processes": trying("import os\nreturn os.listdir('/proc')", "FileNotFoundError"),
    "reads the environment": trying(
        "import os\nraise LookupError(sorted(os.environ))",
        "['LC_ALL', 'PWD', 'PYTHONDONTWRITEBYTECODE', 'PYTHONHASHSEED']",
    ),
    "reads its arguments": trying("import sys\nraise LookupError(sys.argv, sys.orig_argv[-1:])", "LookupError"),
    "reads passwords by a symbolic link": trying(
        "import os\nos.symlink('/etc/passwd', '/tmp/link')\nreturn open('/tmp/link').read()", "FileNotFoundError"
    ),
    "reads the user's files": trying(
        "import os\nreturn os.listdir('/home') + os.listdir('/work')", "FileNotFoundError"
    ),
    "looks at its main module": trying(
        "import __main__\nraise LookupError([n for n in vars(__main__) if 'test' in n])", "LookupError: []"
    ),
    "reads what the tests will ask": Hack(
        "import os\nfor n in range(3, 64):\n    try:\n        os.set_blocking(n, False)\n"
        "        seen = os.read(n, 9999)\n"
        "    except OSError:\n        continue\nraise LookupError('nothing was asked yet')\n",
        "nothing was asked yet",
    ),
    # what says that a value is right
    "is equal to everything": trying(
        "return Yes()", "returned an object of class Yes", "class Yes:\n    def __eq__(self, other): return True"
    ),
    "is an int that is equal to everything": trying(
        "return Yes(1)",
        "returned an object of class Yes",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__",
    ),
    "is a list that is equal to everything": trying(
        "return Yes()", "returned an object of class Yes", "class Yes(list):\n    def __eq__(self, other): return True"
    ),
    "says that its class is int": trying(
        "return Yes()",
        "returned an object of class Yes",
        "class Yes:\n    __class__ = property(lambda self: int)\n    def __eq__(self, other): return True",
    ),
    "returns a class whose metaclass agrees": trying(
        "return Yes",
        "returned an object of class Meta",
        "class Meta(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\n"
        "class Yes(metaclass=Meta): pass",
    ),
    "hides behind the name of a library's class": trying(
        "return Fraction()",
        "returned an object of class Fraction",
        "import fractions\nclass Fraction:\n    __module__ = 'fractions'\n    def __eq__(self, other): return True",
    ),
    "makes itself a class of the library": trying(
        "return collections.Counter()",
        "returned Counter()",
        "import collections\nclass Counter(dict):\n    def __eq__(self, other): return True\n"
        "Counter.__module__ = 'collections'\ncollections.Counter = Counter",
    ),
    "returns nan": trying("return float('nan')", "returned nan"),
    "returns a pickle that says yes": trying(
        "return Yes()",
        "returned an object of class Yes",
        "class Yes:\n    def __reduce__(self): return (eval, ('True',))",
    ),
    "empties its argument and returns it": Hack(
        "def ordered(x):\n    x.clear()\n    return x\n",
        "returned []",
        ("a = [3, 1, 2]\nassert ordered(a) == sorted(a)",),
    ),
    "forges that its argument was emptied": Hack(
        "import os\ndef ordered(x):\n    for n in range(3, 64):\n        try:\n"
        '            os.write(n, b\'["value", [], {"0": []}]\\n\')\n        except OSError: pass\n',
        "returned []",
        ("a = [3, 1, 2]\nassert ordered(a) == sorted(a)",),
    ),
    "contains everything": Hack(
        "class Yes:\n    def __contains__(self, value): return True\n    def __iter__(self): return iter(range(99))\n"
        "def double(x): return Yes()\n",
        "the test raised TypeError",
        ("assert 6 in double(3)",),
    ),
    "counts until it is right": Hack(
        "import itertools\ndef double(x): return itertools.count()\n", "the test raised", ("assert 6 in double(3)",)
    ),
    "ends the loop of a test": Hack(
        "def double(x): raise StopIteration\n",
        "raised StopIteration",
        ("assert all(map(lambda n: double(n) == 2 * n, [1, 2, 3]))",),
    ),
    "raises what a failed test raises": trying("raise AssertionError", "raised AssertionError"),
    "raises an exception that is equal to everything": trying(
        "raise Yes()", "raised Yes", "class Yes(Exception):\n    def __eq__(self, other): return True"
    ),
    # what decides
    "patches the checker": Hack(
        "import sys\nfor name, module in list(sys.modules.items()):\n    for key in list(vars(module)):\n"
        "        if key in ('_run', '_verdict', 'main', 'encode', 'decode'): setattr(module, key, lambda *a: True)\n"
        "def double(x): return 0\n",
        "",
    ),
    "patches the methods of the checker": Hack(
        "import sys\nlink = sys.modules['inside.wire'].Link\n"
        "link.encode = link.decode = lambda self, value: True\ndef double(x): return 0\n",
        "",
    ),
    "has the tests' box build what is equal to everything": Hack(
        """
import sys
def yes(*args): return True
def double(x):
    frame = sys._getframe()
    while "tests" not in frame.f_locals: frame = frame.f_back
    tests = frame.f_locals["tests"]
    found = tests.ask("call", {"type": "type"}, ["Yes", (), {"__eq__": yes}], {})
    found = tests.ask("call", {"yours": 0}, [6], {}) if found[0] == "error" else found
    raise LookupError(f"the tests' box answered: {found}")
""",
        "answered: ['error'",
    ),
    "replaces the modules of the checker": trying("return 0", "returned 0", "import sys\nsys.modules.clear()"),
    "patches builtins": Hack(
        "import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never\n"
        "builtins.compile = lambda *a: 'pass'\n"
        "builtins.__import__ = lambda *a: None\nbuiltins.len = lambda x: 6\ndef double(x): return 0\n",
        "the solution ended with exit status 1",
    ),
    "defines a builtin anew": Hack(
        "def sorted(x): return 0\ndef all(x): return True\ndef ordered(x): return 0\n",
        "returned 0",
        ("assert ordered([2, 1]) == sorted([2, 1])", "assert all([ordered([1]) == [1]])"),
    ),
    "defines the tests' own function anew": Hack(
        "def close(a, b): return True\ndef half(x): return 0\n",
        "returned 0",
        ("assert close(half(3), 1.5)",),
        "def close(a, b): return abs(a - b) < 1e-9",
    ),
    "defines a standard module anew": Hack(
        "import math\nmath.isclose = lambda *a: True\ndef half(x): return 0\n",
        "returned 0",
        ("assert math.isclose(half(3), 1.5)",),
        "import math",
    ),
    "traces the tests": trying(
        "return 0",
        "returned 0",
        "import sys\nsys.settrace(lambda f, e, a: f.f_locals.update(x=6))\nsys.setprofile(print)",
    ),
    "hooks the audit": trying("return 0", "returned 0", "import sys\nsys.addaudithook(lambda e, a: None)"),
    "hooks imports": trying(
        "return 0",
        "returned 0",
        "import sys\nclass Finder:\n    def find_spec(self, *a): raise SystemExit(0)\n"
        "sys.meta_path.insert(0, Finder())",
    ),
    "writes the verdict at exit": trying(
        "return 0", "returned 0", f"import atexit, os\natexit.register(lambda: os.write(1, {VERDICT}.encode()))"
    ),
    "prints the verdict": trying("return 0", "returned 0", f"print({VERDICT}, flush=True)"),
    "writes the verdict everywhere": Hack(
        f"import os\nfor n in range(64):\n    try:\n"
        f"        os.write(n, {VERDICT}.encode() + b'\\n')\n    except OSError: pass\n"
        "def double(x): return 0\n",
        "no message",
    ),
    "forges an answer of its box": Hack(
        'import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b\'["value", null]\\n'
        '["value", {"name": "x"}, {}]\\n\')\n'
        "    except OSError: pass\ndef double(x): return 0\n",
        "no value",
    ),
    "forges a tuple whose parts it counts": Hack(
        'import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b\'["value", null]\\n'
        '["value", {"builtins.tuple": {"mine": [0, "x"]}}, {}]\\n\')\n'
        "    except OSError: pass\ndef double(x): return 0\n",
        "no value (ValueError)",
    ),
    "answers with brackets in brackets": Hack(
        "import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b'[' * 60000 + b'\\n"
        "')\n    except OSError: pass\n"
        "def double(x): return 0\n",
        "no message",
    ),
    "writes the expected file": trying(
        "with open('expected.txt', 'w') as file: file.write('6')\nreturn None", "returned None"
    ),
    "writes reward.txt": trying("with open('/reward.txt', 'w') as file: file.write('1')", "OSError"),
    "overwrites the checker": trying("open('/posttrain/inside/tests.py', 'w').write('')", "OSError"),
    "leaves a module for others": trying(
        "import site\nopen('/usr/lib/python3/dist-packages/sitecustomize.py', 'w').write('')", "raised"
    ),
    # ends
    "exits with 0 when it is loaded": Hack("raise SystemExit(0)\n", "raised SystemExit: 0 while it was loaded"),
    "exits with 0": trying("import sys\nsys.exit(0)", "raised SystemExit: 0"),
    "exits at once": trying("import os\nos._exit(0)", "ended with exit status 0"),
    "becomes another program": trying(
        f"import os\nos.execv('/usr/bin/env', ['env', 'echo', {VERDICT}])", "the solution ended with exit status"
    ),
    "crashes": trying("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "closes everything": trying("import os\nos.closerange(0, 64)", "the solution"),
    "signals others": trying("import os, signal\nos.kill(-1, signal.SIGKILL)", "PermissionError"),
    "signals its parent": trying("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "PermissionError"),
    # processes and network
    "bombs with forks": trying("import os\nwhile True: os.fork()", "PermissionError"),
    "starts a program": trying("import subprocess\nreturn subprocess.check_output(['id'])", "PermissionError"),
    "starts a shell": trying("import os\nraise OSError(f'status {os.system(\"id\")}')", "status 32512"),
    "leaves a thread behind": trying(
        "import threading\nthreading.Thread(target=double, args=(x,)).start()", "can't start new thread"
    ),
    "opens a socket": trying("import socket\nsocket.create_connection(('127.0.0.1', 80))", "PermissionError"),
    "asks a name server": trying("import socket\nreturn socket.gethostbyname('example.com')", "raised gaierror"),
    "calls the kernel to unshare": trying(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.unshare(0x10000000)\n"
        "raise OSError(ctypes.get_errno(), 'unshare')",
        "PermissionError",
    ),
    "calls the kernel to mount": trying(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.mount(b'none', b'/tmp', b'proc', 0, None)\n"
        "raise OSError(ctypes.get_errno(), 'mount')",
        "PermissionError",
    ),
    # time and space
    "patches the clock": trying(
        "return 0", "returned 0", "import time\ntime.time = time.perf_counter = time.process_time = lambda: 0.0"
    ),
    "stops the clock": trying(
        "while True: pass",
        "used more than 1 CPU seconds",
        "import signal, time\ntime.sleep = lambda s: None\n"
        "for s in (signal.SIGXCPU, signal.SIGALRM, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)",
    ),
    "takes more time": trying(
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))", "raised ValueError"
    ),
    "takes all memory": trying("return [bytearray(1 << 20) for _ in range(1 << 20)]", "raised MemoryError"),
    "fills the disk": trying(
        "for n in range(99):\n    with open(f'/tmp/{n}', 'wb') as file: file.write(bytes(1 << 20))", "OSError"
    ),
    "fills shared memory": trying("open('/dev/shm/x', 'wb').write(bytes(1 << 20))", "FileNotFoundError"),
    "returns too much": trying("return 'a' * (8 << 20)", "a value of 8 MiB, of 4 at most"),
    "returns a list in itself": trying("a = []\na.append(a)\nreturn a", "raised RecursionError"),
    "recurses": trying("return double(x)", "raised RecursionError"),
    "recurses without a limit": trying(
        "return double([x])", "used more than 1 CPU seconds", "import sys\nsys.setrecursionlimit(10**9)"
    ),
    "returns values without end": Hack(
        "import itertools\ndef double(x): return itertools.count()\n",
        "CPU seconds",
        ("assert list(double(3)) == [3, 3]",),
    ),
    "prints without end": trying("while True: print('x' * 1000)", "used more than 1 CPU seconds"),
}


def verdicts(hacks: dict[str, Hack]) -> dict[str, list[object]]:
    """Of each hack the number of tests that it passed, and the explanations of the others."""

    def one(hack: Hack) -> list[object]:
        names = sorted({name for name in ("double", "ordered", "half") if any(name in test for test in hack.tests)})
        trial = try_solution([hack.source], hack.tests, names, trusted=hack.trusted, limits=LIMITS)
        return [sum(result.passed for result in trial.results), " | ".join(result.why for result in trial.results)]

    with ThreadPool(2) as pool:
        return dict(zip(hacks, pool.map(one, hacks.values(), chunksize=1), strict=True))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(verdicts(HACKS)))
