"""Reward models, local chat models and reward functions of a run: in this process, or in processes of a cluster."""

import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from posttrain.bindings.backend import Backend, connect, share_of
from posttrain.bindings.cluster_options import ClusterOptions, check_cluster, refuse_idle_scorers
from posttrain.bindings.judges import JudgeModels
from posttrain.data import ChatFormat, load_tokenizer
from posttrain.engine.chat_models import EngineChat
from posttrain.engine.client import Client
from posttrain.engine.policy import load_policy
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.scorer import Scorer, ScorerFacts, load_scorer
from posttrain.environments.scored import Overseen, ParsedRewards, overseen
from posttrain.errors import UserError, words_of
from posttrain.models.load import locate, tokenizer_of
from posttrain.options.groups import Ensemble
from posttrain.options.online import OnlineOptions
from posttrain.training.resolve_model import named, saved_model
from posttrain.types import ScoreFn, Task


class RewardModel(NamedTuple):
    """A reward model, wherever it is computed."""

    ask: ScoreFn
    facts: ScorerFacts
    chat: ChatFormat

    def refuse_too_long(self, tasks: Sequence[Task], max_new_tokens: int) -> None:
        """Check that answers will fit: better now than when the first long one has been sampled."""
        longest = max(len(self.chat.prompt_ids(task.prompt)) for task in tasks) + max_new_tokens
        if longest > self.facts.most:
            raise UserError(
                f"a prompt and its answer may have {longest} tokens for the reward model {self.facts.name}, which "
                f"takes {self.facts.most}; type a smaller `max_new_tokens` or `max_prompt_tokens`, or more "
                "`microbatch_tokens`"
            )


class Scoring(NamedTuple):
    """What a run scores with, and the processes that have it, if any do."""

    parsed: ParsedRewards  # whose functions are called where they are placed
    models: list[RewardModel]
    gold: RewardModel | None
    folders: dict[str, str]  # by name as typed
    group: Any = None  # a `ScorerGroup`

    def joined(self, backend: Backend, stack: ExitStack) -> Backend:
        """A backend whose processes are these, too; they end with it, and no longer with `stack`."""
        if self.group is None:
            return backend
        whole, ledger = ExitStack(), self.group.ledger
        whole.push(stack.pop_all())
        whole.push(backend.stack)
        return replace(
            backend,
            stack=whole,
            groups=(*backend.groups, self.group),
            spans=lambda: [*(backend.spans() if backend.spans else ()), *ledger.spans()],
        )


def load_scoring(
    options: OnlineOptions, cluster: ClusterOptions, stack: ExitStack, parsed: ParsedRewards, judging: JudgeModels
) -> Scoring:
    """Load the models, and functions where they are called elsewhere; raises `UserError` for idle processes."""
    size, group = getattr(cluster, "scorers", 0), None
    gold = [named(options.gold_model)] if options.gold_model else []
    typed = [*words_of("reward_model", options.reward_model), *gold]
    folders = {name: saved_model(name).where for name in typed}
    where = [folders[name] for name in typed]
    if not size:
        scorers = load_scorers(where, options.microbatch_tokens, options.precision)
        found = [RewardModel(scorer, scorer.facts, scorer.chat) for scorer in scorers]
    else:
        check_cluster(cluster, options.engine)
        functions, chats = parsed.movable, [judging.folders[name] for name in judging.local]
        refuse_idle_scorers(bool(where or chats or functions))
        connect(cluster, stack)
        share, has_models = share_of(cluster, "scorer"), bool(where or chats)
        if not has_models and share.gpus is None:  # functions do not say that they compute on one
            share = share._replace(gpus=0.0)
        group = stack.enter_context(
            importlib.import_module("posttrain.distributed.scorers").ScorerGroup(
                size,
                partial(_loaded, where, chats, options.microbatch_tokens),
                functions=functions,
                precision=options.precision if has_models else "float32",  # which nothing has to be measured for
                share=share,
                timeout_s=cluster.cluster_timeout,
            )
        )
        tokenizers = [load_tokenizer(locate(path)) for path in where]
        found = [
            RewardModel(group.scores(number), facts, ChatFormat(tokenizers[number], facts.stop_ids))
            for number, facts in enumerate(group.facts.rewards)
        ]
        parsed = parsed.moved(group.reward)
        for number, model in enumerate(judging.local.values()):
            model.make = partial(_chat, group, number, chats[number])
    judging.load()
    return Scoring(parsed, found, found.pop() if gold else None, folders, group)


def steps_of(aggregation: str, models: Sequence[ScorerFacts]) -> str:
    """The aggregation of steps, if these are process reward models; empty if they score responses."""
    if len({model.steps for model in models}) > 1:
        names = next(m.name for m in models if m.steps), next(m.name for m in models if not m.steps)
        raise UserError(
            f"`reward_model` names {names[0]}, which scores steps, and {names[1]}, which scores responses; give models "
            "of one kind"
        )
    return aggregation if models and models[0].steps else ""


def overseen_by(
    options: Ensemble, parsed: ParsedRewards, models: Sequence[ScoreFn], facts: Sequence[ScorerFacts], **more: Any
) -> Overseen:
    """Rewards with these reward models, combined as the options say; `more` is what `overseen` takes besides.

    Raises `UserError` where members that the options compare are not centred: the minimum means nothing then.
    """
    unknown = [model.name for model in facts if not (model.comparable or model.steps)]
    if (use := options.ensemble_aggregation) != "mean" and unknown:
        raise UserError(
            f'`ensemble_aggregation="{use}"` compares scores of members, and the zero of {unknown[0]} is not '
            "known; train it with pairs held out (`eval_share`), which calibrates it, or use mean"
        )
    members, steps = sum(model.members for model in facts), steps_of(options.step_aggregation, facts)
    how = {"members": members, "use": use, "penalty": options.uncertainty_penalty, "steps": steps}
    return overseen(parsed.rewards, models, gold=parsed.gold, **how, **more)


def _chat(group: Any, number: int, where: str) -> EngineChat:
    """The chat model in the folder `where`, which processes have."""
    facts = group.facts.chats[number]
    chat = ChatFormat(load_tokenizer(tokenizer_of(where)), facts.stop_ids)
    return EngineChat(Client(Scheduler(group.engine(number), own_thread=True)), chat, facts.context)


def load_scorers(where: Sequence[str], microbatch_tokens: int, precision: str) -> list[Scorer]:
    """The reward models in these folders."""
    return [load_scorer(each, precision=precision, microbatch_tokens=microbatch_tokens) for each in where]


def _loaded(where: Sequence[str], chats: Sequence[str], microbatch_tokens: int, precision: str) -> Any:
    models = importlib.import_module("posttrain.distributed.scorers").Models
    return models(
        load_scorers(where, microbatch_tokens, precision), [load_policy(each, precision=precision) for each in chats]
    )
