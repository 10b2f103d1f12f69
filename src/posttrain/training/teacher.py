"""Teacher model for on-policy distillation: frozen, provides logprobs of the policy's samples."""

from dataclasses import dataclass

from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.models.footprint import Shape, read_shape
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model, tokenizer_of
from posttrain.models.reference import FrozenModel
from posttrain.options.kinds import Model
from posttrain.training.resolve_model import saved_model


@dataclass(frozen=True)
class Teacher:
    """A teacher that is not loaded yet: where it is, and its shape."""

    where: str
    shape: Shape

    def load(self, policy: LanguageModel) -> FrozenModel:
        """Load it in the number format of the policy, and on its device."""
        return FrozenModel(load_model(self.where, dtype=policy.dtype, device=str(policy.device)))


def find_teacher(name: Model, policy: str, *, microbatch_tokens: int) -> Teacher | None:
    """The teacher that --teacher names: a hub id, a folder, a run or a packaged model; None for an empty name.

    No weights are read. `policy` is where the policy is.

    Raises:
        UserError: its vocabulary differs from the policy's, its head is smaller, or its context is too short.
        ModelError: there is no such model.
    """
    if not name:
        return None
    where = saved_model(name).where
    mine, its = (load_tokenizer(tokenizer_of(one)).get_vocab() for one in (policy, where))
    if said := differing(mine, its):
        raise UserError(
            f"the teacher {name} has another tokenizer than the policy: {said}; logprobs are compared token by token, "
            "so pass a teacher of the policy's model family"
        )
    student, teacher = read_shape(policy), read_shape(where)
    if teacher.vocabulary < student.vocabulary:
        raise UserError(
            f"the teacher {name} predicts {teacher.vocabulary:,} tokens and the policy {student.vocabulary:,}, so that "
            "it has no logprob for some; give another teacher"
        )
    longest = min(student.context, microbatch_tokens)
    if teacher.context < longest:
        raise UserError(
            f"the teacher {name} reads {teacher.context} tokens at most, and a prompt with its completion may have "
            f"{longest}; lower microbatch_tokens to {teacher.context}, or give another teacher"
        )
    return Teacher(where, teacher)


def differing(mine: dict[str, int], its: dict[str, int]) -> str:
    """Describe the difference of the teacher's vocabulary from the policy's; "" if they are equal.

    Example:
        >>> differing({"a": 0, "b": 1}, {"a": 0, "b": 2, "c": 1})
        "2 of 3 tokens differ, such as 'b' (1 in the policy's, 2 in the teacher's)"
    """
    tokens = sorted({*mine, *its}, key=lambda token: (mine.get(token, len(mine)), token))
    other = [token for token in tokens if mine.get(token) != its.get(token)]
    if not other:
        return ""
    first = other[0]
    return (
        f"{len(other)} of {len(tokens)} tokens differ, such as {first!r} ({mine.get(first, 'none')} in the policy's, "
        f"{its.get(first, 'none')} in the teacher's)"
    )
