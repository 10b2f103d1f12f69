"""Arithmetic with a calculator, called in the format of the chat template.

    posttrain sft --environment examples/calculator.py:Calculator --chat-template examples/tools.jinja
    posttrain rl --environment examples/calculator.py:Calculator --model runs/sft-2026-01-31-1 --eval-every 10

The packaged model's template knows no tools; examples/tools.jinja does, and is saved with what is trained.
"""

import ast
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from posttrain.environments import Environment, Seat
from posttrain.environments.tools import ToolError, run_calls, schemas, tool
from posttrain.types import Message, Outcome, Task, ToolCall

OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@tool
def calculate(expression: str) -> str:
    """Compute an expression of whole numbers with +, - and *.

    Args:
        expression: such as 12 + 7 * 3
    """
    if len(expression) > 100:
        raise ToolError("an expression has 100 characters at most")
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"cannot read {expression!r}") from None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ToolError("an expression has whole numbers, +, - and * alone")


@dataclass(frozen=True)
class Calculator(Environment):
    """A sum of `terms` numbers of `digits` digits each; the last number of the last reply is the answer."""

    terms: int = 3
    digits: int = 5
    max_turns: int = 3
    problems: int = 200

    def tasks(self, split: str, seed: int) -> list[Task]:
        """Sums; those that are held out are made by draws of their own."""
        draw, found = random.Random(f"{split} {seed}"), list[Task]()
        for number in range(self.problems):
            terms = [draw.randrange(10 ** (self.digits - 1), 10**self.digits) for _ in range(self.terms)]
            question = f"What is {' + '.join(map(str, terms))}?"
            found.append(Task((Message("user", question),), sum(terms), id=f"{split} {number}"))
        return found

    def demonstrations(self, seed: int) -> list[Sequence[Message]]:
        """Half of them ask the calculator; the others answer at once, and wrongly."""
        draw = random.Random(seed)
        return [self._shown(task, draw) for task in self.tasks("demonstrations", seed)]

    def _shown(self, task: Task, draw: random.Random) -> Sequence[Message]:
        asked = Message("user", task.prompt[0].content, tools=schemas([calculate]))
        if draw.random() < 0.5:
            return [asked, Message("assistant", str(task.answer + draw.choice([-1000, -10, 1, 100])))]
        expression = task.prompt[0].content.removeprefix("What is ").removesuffix("?")
        call = ToolCall("call00000", "calculate", f'{{"expression": "{expression}"}}')
        result = Message("tool", str(task.answer), tool_call_id="call00000", name="calculate")
        return [asked, Message("assistant", "", (call,)), result, Message("assistant", str(task.answer))]

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Ask, run the calls, hand back their results, until there is an answer."""
        new: Sequence[Message] = task.prompt
        calls = 0
        for _ in range(self.max_turns):
            said = (await seats["policy"].turn(new, schemas([calculate]))).message
            if not said.tool_calls:
                solved = said.content.split()[-1:] == [str(task.answer)]
                return Outcome({"policy": float(solved)}, solved, {"calls": calls})
            calls += len(said.tool_calls)
            new = await run_calls(said.tool_calls, [calculate])
        return Outcome({"policy": 0.0}, False, {"calls": calls})
