"""Model cards, written from what the run logged. No model output is included."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.data.digests import SOURCES
from posttrain.statistics import wilson_interval

Z = 1.96  # standard errors on each side of a 95% interval

METHODS = {
    "sft": "supervised fine-tuning",
    "rl": "reinforcement learning",
    "preference": "preference optimisation",
    "online-preference": "preference optimisation on its own completions",
    "reward-model": "reward modelling",
    "reward-model-attributes": "reward modelling by attributes",
}

CAVEATS = {
    "sft": "A loss has no interval here, and a lower one does not mean that answers are right.",
    "reward-model": "Agreement with people on pairs does not show that a policy trained on the score gets better.",
    "rl": "A higher reward can come from what the reward does not see, such as length or form.",
}
"""What the held-out results of a command do not show."""


@dataclass(frozen=True)
class Facts:
    """What a card says."""

    title: str
    form: str  # what the folder holds: "merged", "adapter", "model" or "reward model"
    base: str  # the model that was trained, by name
    dtype: str  # of the weights
    command: str = ""  # which of posttrain's, "" where no run is known
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])  # its options, with `knobs` of the algorithm
    adapter: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what peft's configuration says of one
    data: Mapping[str, str] = field(default_factory=dict[str, str])  # SHA-256 of each file, by name
    recorded: bool = True  # whether the digests are of the files as they were when the run began
    metrics: Sequence[Mapping[str, Any]] = ()  # rows of the run up to the step that is exported
    step: int | None = None  # that step
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])  # versions, hardware and commit
    checked: Sequence[str] = ()  # sentences on how the folder was checked

    @property
    def evaluated(self) -> list[Mapping[str, Any]]:
        """The rows with held-out results."""
        return [row for row in self.metrics if any(str(key).startswith("evaluation/") for key in row)]


def model_card(facts: Facts) -> str:
    """The text of README.md, with the front matter that hubs read."""
    parts = [_front(facts), f"# {_text(facts.title)}", _what(facts), *_data(facts), *_how(facts), *_results(facts)]
    parts += ["## What the results do not show", _items(caveats(facts)), "## How to load it", _loading(facts)]
    if facts.checked:
        parts += ["## Checks", _items(facts.checked)]
    parts += _versions(facts)
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(facts: Facts) -> str:
    lines = [
        f"base_model: {json.dumps(facts.base)}",
        f"library_name: {'peft' if facts.form == 'adapter' else 'transformers'}",
        f"pipeline_tag: {'text-classification' if facts.form == 'reward model' else 'text-generation'}",
        f"tags: {json.dumps(['posttrain', *([facts.command] if facts.command else []), *_algorithm(facts)])}",
    ]
    return "\n".join(["---", *lines, "---"])


def _algorithm(facts: Facts) -> list[str]:
    name = facts.config.get("algorithm")
    return [str(name)] if name else []


def _what(facts: Facts) -> str:
    kinds = {
        "merged": "A whole model: its base with a low-rank adapter merged into the weights.",
        "adapter": "A low-rank adapter, to be loaded with its base.",
        "model": "A whole model.",
        "reward model": "A reward model: a sequence classifier whose score says which response people would choose.",
    }
    method = METHODS.get(facts.command, facts.command)
    algorithm = "".join(f" with {_code(name)}" for name in _algorithm(facts))
    trained = f" Trained from {_code(facts.base)} by {method}{algorithm}" if method else f" Base: {_code(facts.base)}"
    step = f", {facts.step:,} steps" if method and facts.step is not None else ""
    return f"{kinds[facts.form]}{trained}{step}. Weights are {facts.dtype}."


def _data(facts: Facts) -> list[str]:
    named = [f"{key.replace('_', ' ')}: {_code(facts.config[key])}" for key in SOURCES if facts.config.get(key)]
    if not named:
        return ["## Data", "Not known: no run directory was at hand."]
    parts = ["## Data", _items(named)]
    if facts.data:
        when = "when the run began" if facts.recorded else "at the export: the run did not record them"
        parts += [f"SHA-256 of each file, {when}:", _table(("file", "SHA-256"), facts.data.items())]
    else:
        parts.append("No digest is known: the data are no files here.")
    return parts


def _how(facts: Facts) -> list[str]:
    if not facts.config and not facts.adapter:
        return []
    knobs = facts.config.get("knobs") or {}
    skipped = ("knobs", "model", *SOURCES)
    rows = [*((k, v) for k, v in facts.config.items() if k not in skipped), *dict(knobs).items()]
    parts = ["## Hyperparameters"]
    if facts.adapter:
        shown = ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "target_modules", "modules_to_save")
        named = [(key, facts.adapter[key]) for key in shown if facts.adapter.get(key) not in (None, False, [])]
        parts += ["The adapter:", _table(("peft", "value"), named)]
    if rows:
        parts += [f"Options of {_code('posttrain ' + facts.command)}:", _table(("option", "value"), rows)]
    return parts


def _results(facts: Facts) -> list[str]:
    if not (rows := facts.evaluated):
        return ["## Results", "Nothing was held out, so nothing is known of how well it does."]
    first, last = rows[0], rows[-1]
    names = [str(key).removeprefix("evaluation/") for key in last if str(key).startswith("evaluation/")]
    told = [name for name in names if not name.endswith(("_low", "_high", "_se"))]
    columns = ("held out", f"step {first.get('step', 0)}", f"step {last.get('step', 0)}")
    table = _table(columns, [(name, _value(first, name), _value(last, name)) for name in told], code=False)
    parts = ["## Results", table, "In brackets: 95% intervals, where the run had what they need."]
    if facts.step is not None and last.get("step") != facts.step:
        parts.append(f"The exported weights are of step {facts.step}; the last evaluation before is shown.")
    return parts


def _value(row: Mapping[str, Any], name: str) -> str:
    value = row.get(f"evaluation/{name}")
    if not isinstance(value, int | float):
        return "-"
    low, high = interval(row, name) or (None, None)
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} ({low:.4g} to {high:.4g})"


def interval(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The 95% interval of a held-out result: as it was logged, from its standard error, or of a share of pairs."""
    value = row[f"evaluation/{name}"]
    low, high, error = (row.get(f"evaluation/{name}_{end}") for end in ("low", "high", "se"))
    if low is not None and high is not None:
        return low, high
    if error is not None:
        return value - Z * error, value + Z * error
    pairs = row.get("evaluation/pairs")
    if name in ("accuracy", "pair_accuracy") and pairs and 0 <= value <= 1:
        return wilson_interval(value * pairs, pairs)
    return None


def caveats(facts: Facts) -> list[str]:
    """What the results do not show."""
    found: list[str] = ["Whether training helped: nothing was held out."]
    if facts.evaluated:
        found = [
            "The held-out rows come from the source named above; nothing was measured on other tasks, languages or "
            "ways of asking.",
            "Intervals are over held-out rows of one run with one seed; another seed would give another model.",
        ]
        if len(facts.evaluated) > 2:
            found.append(
                "Of several checkpoints the best on the held-out rows may have been taken, which makes its result "
                "look better than it would be on new rows."
            )
        found += filter(None, [CAVEATS.get(facts.command.removesuffix("-attributes"))])
    return [
        *found,
        "Safety, bias, toxicity, privacy and memorised text were not examined.",
        f"What is known of the base ({_code(facts.base)}) and its data holds for this model as well.",
    ]


def _loading(facts: Facts) -> str:
    if facts.form == "adapter":  # transformers 5.23 itself leaves out the lengths that DoRA learned
        kind = "AutoPeftModelForCausalLM"
        imports = f"from peft import {kind}\nfrom transformers import AutoTokenizer"
    else:
        kind = "AutoModelForSequenceClassification" if facts.form == "reward model" else "AutoModelForCausalLM"
        imports = f"from transformers import {kind}, AutoTokenizer"
    tokenizer, model = (f'{auto}.from_pretrained("FOLDER")' for auto in ("AutoTokenizer", kind))
    return f"```python\n{imports}\n\ntokenizer = {tokenizer}\nmodel = {model}\n```"


def _versions(facts: Facts) -> list[str]:
    versions = facts.environment.get("versions")
    if not isinstance(versions, Mapping) or not versions:
        return []
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    where = [facts.environment.get(key) for key in ("cpu", "device")]
    machine = ", ".join(str(one) for one in where if one)
    return ["## Made with", _text(f"{said}; Python {facts.environment.get('python', '?')}; {machine}")]


def _items(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _table(columns: Sequence[str], rows: Any, *, code: bool = True) -> str:
    shown = [tuple(_code(cell) if code or not i else _text(str(cell)) for i, cell in enumerate(row)) for row in rows]
    lines = [columns, tuple("---" for _ in columns), *shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(value: object) -> str:
    """A value as code, on one line, that cannot end its span or its table's cell."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else '`""`'


def _text(text: str) -> str:
    """Text without what Markdown or HTML would read as more than text."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in text)
