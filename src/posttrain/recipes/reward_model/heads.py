"""Heads of one kind: what they read, how they learn and are evaluated, and what is saved of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from posttrain.bindings import feedback
from posttrain.bindings.feedback import Feedback, Units
from posttrain.data import ChatFormat, save_for_scores
from posttrain.models.heads import Calibration, complete
from posttrain.options.option import Form
from posttrain.options.training import Scoring
from posttrain.training.learner import Learner


class Heads:
    """The base of all kinds. Made from the options, it checks those and reads the data, before anything is loaded.

    What checkpoints keep, too: `save` and `restore` are those of `Trained`.
    """

    options: ClassVar[type] = Form
    """The group of options that are for heads of this kind alone."""
    kind: ClassVar[Feedback[Any, Any]]
    """The feedback that they are trained on."""
    on_clusters: ClassVar[bool] = True
    """Whether several processes can train them."""

    reads: int = 0  # passes over a batch that only read it
    names: tuple[str, ...] = ()  # of the attributes that they rate
    evaluated: tuple[bool, bool]  # before the first step, after the last one
    calibration: Calibration | None = None  # of the weights as they are now, to be saved with them

    def __init__(self, config: Scoring) -> None:
        self._config, self._sides = config, feedback.read(config, self.kind)

    def tokenize(self, chat: ChatFormat, context: int) -> Units[Any]:
        """What they are trained on, and what is held out, as tokens."""
        self._chat, self._units = chat, feedback.tokenize(self._config, self.kind, self._sides, chat, context)
        self.evaluated = bool(self._units.heldout), bool(self._units.heldout)
        return self._units

    def loader(self, where: str) -> Callable[..., Any]:
        """Loads the model in the folder `where` with such heads; it is sent to other processes."""
        raise NotImplementedError

    def begin(self, learner: Learner) -> None:
        """Take the learner of what was loaded."""
        self._learner = learner

    def gradient(self, batch: Sequence[Any], seed: int) -> dict[str, float]:
        """Accumulate the gradient of a batch; its loss and metrics. What was fitted to the weights is void then."""
        raise NotImplementedError

    def evaluate(self, step: int, say: Callable[[str], None]) -> dict[str, float]:
        """Metrics of what is held out; fits what depends on the weights as they are now."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder, and the state of the learner."""
        self._learner.save(folder)
        ends = {example.continuation[-1] for example in self.kind.examples(self._units.learned)}
        padding = save_for_scores(self._chat.tokenizer, folder, ends)
        complete(folder, padding=padding, calibration=self.calibration)

    def restore(self, folder: Path) -> None:
        """Restore the state of the learner."""
        self._learner.restore(folder)
