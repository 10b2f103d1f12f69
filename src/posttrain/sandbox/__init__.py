"""Programs that are not trusted, such as those that a policy writes, run isolated and with limits (docs/sandbox.md)."""

from posttrain.sandbox.box import Limits as Limits
from posttrain.sandbox.box import Ran as Ran
from posttrain.sandbox.box import Stop as Stop
from posttrain.sandbox.box import run_program as run_program
from posttrain.sandbox.isolation import Sandbox as Sandbox
from posttrain.sandbox.isolation import SandboxError as SandboxError
from posttrain.sandbox.isolation import refuse_without_isolation as refuse_without_isolation
from posttrain.sandbox.session import Cell as Cell
from posttrain.sandbox.session import PythonSession as PythonSession
from posttrain.sandbox.trial import TestResult as TestResult
from posttrain.sandbox.trial import Trial as Trial
from posttrain.sandbox.trial import try_solution as try_solution
