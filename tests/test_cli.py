"""The command line as people meet it. What needs no model runs here in process; the surface is frozen in a file."""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_origin

import pytest

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms import COMMANDS as FAMILY_COMMANDS
from posttrain.cli import SHARED, find, main, read
from posttrain.commands import COMMANDS, EXAMPLES, algorithm_of
from posttrain.errors import RewardError, UserError
from posttrain.models import packaged
from posttrain.options.hyperparameters import field_docstrings, hyperparameters
from posttrain.parsing import flag, kinds_of
from posttrain.report import Estimate, Table
from posttrain.runs import RunDirectory, config_file
from posttrain.threads import SPINCOUNT
from tests.recipes.folders import model_folder

ROOT = Path(__file__).parents[1]
SURFACE = Path(__file__).with_name("surface.txt")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs land in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of one command."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def sft(model: str, here: Path) -> list[str]:
    """A fine-tuning that takes no time."""
    rows = [{"prompt": f"{i}", "completion": f"{i + 1}"} for i in range(4)]
    (here / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["sft", "--dataset", "train.jsonl", "--model", model, "--examples-per-step", "2", "--precision", "float32"]


@pytest.fixture
def rl(model: str, here: Path) -> list[str]:
    """Two prompts, two completions of each, three tokens long."""
    rows = [{"prompt": f"{i}+{i}", "answer": str(2 * i)} for i in range(2)]
    (here / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    size = ["--prompts-per-step", "2", "--completions-per-prompt", "2", "--max-new-tokens", "3", "--steps", "2"]
    return ["rl", "--dataset", "tasks.jsonl", "--model", model, "--reward", "exact", *size, "--precision", "float32"]


def environment() -> dict[str, str]:
    """For another Python that imports the same source as this one."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def flags(form: type) -> dict[str, str]:
    """Each flag of a dataclass with its default."""
    return {flag(field.name): repr(field.default) for field in dataclasses.fields(form)}


def surface() -> str:
    """Every flag of every command: what people's scripts rely on."""
    lines: list[str] = []
    for name, command in COMMANDS.items():
        form = command.form
        lines += [f"posttrain {name} {typed} = {default}" for typed, default in flags(form).items()]
        if command.cluster:
            processes = flags(command.cluster)
            lines += [f"posttrain {name} {typed} = {default}" for typed, default in processes.items()]
        lines += [f"posttrain {name} {flag(key)}" for key in (*command.shared, "debug")]
    for name in sorted(ALGORITHMS):
        knobs = flags(type(ALGORITHMS[name]()))
        family = FAMILY_COMMANDS[ALGORITHMS[name]().family]
        for command in (family, *(["online-preference"] if family == "preference" else [])):
            lines += [f"posttrain {command} --algorithm {name} {typed} = {default}" for typed, default in knobs.items()]
    return "\n".join(lines) + "\n"


def test_no_flag_changes_unnoticed():
    assert surface() == SURFACE.read_text(encoding="utf-8"), (
        "the command line has changed; if it was meant to, say so in CHANGELOG.md and type: python -m tests.test_cli"
    )


@pytest.mark.parametrize("group", ["models", "export", "annotate"])
def test_help_of_a_group_lists_its_commands(run, group):
    code, out, err = run(group, "--help")
    assert (code, err) == (0, "")
    assert [line.split("  ")[1] for line in out.splitlines()[3:]] == [n for n in COMMANDS if n.startswith(f"{group} ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_may_be_nothing_is_nothing_unless_given(name):
    """TOML has no null: an option that was None is left out of config.toml, and must be None again when it is read."""
    form = COMMANDS[name].form
    for field in dataclasses.fields(form):
        assert "None" not in str(field.type) or field.default is None, field.name


def test_every_option_of_a_recipe_has_help():
    for name, command in COMMANDS.items():
        form = command.form
        texts = field_docstrings(form)
        for field in dataclasses.fields(form):
            assert texts.get(field.name) or get_origin(field.type) is Annotated, f"{name}: {field.name} has no text"


def test_help_and_a_wrong_option_need_neither_torch_nor_what_takes_as_long():
    heavy = {"torch", "transformers", "tensorboard", "pyarrow", "datasets", "matplotlib"}
    script = "import sys; from posttrain.cli import main; codes = [main(words.split()) for words in sys.argv[1:]]"
    script += f"; print(codes, {heavy!r} & sys.modules.keys())"
    asked = ["--help", "rl --help", "rl --algoritm x", "preference --help-all", "sft --lr much", "evaluate --help"]
    done = subprocess.run([sys.executable, "-c", script, *asked], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 2, 0, 2, 0] set()"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_hyperparameters_that_are_read_from_the_source_are_those_of_the_class(name):
    real = type(ALGORITHMS[name]())
    read = hyperparameters(name, ALGORITHMS[name]().family)
    assert [(one.name, one.default) for one in dataclasses.fields(read)] == [
        (one.name, one.default) for one in dataclasses.fields(real)
    ]
    texts = field_docstrings(real)
    assert field_docstrings(read) == {one.name: texts[one.name] for one in dataclasses.fields(real)}


OWN = """
from dataclasses import dataclass
from posttrain.algorithms.grpo import GRPO


@dataclass(frozen=True)
class Mine(GRPO):
    \"\"\"GRPO with half of each advantage.\"\"\"

    share: float = 0.5
    \"\"\"Share of the advantage that is kept.\"\"\"

    def advantages(self, rollout):
        found = super().advantages(rollout)
        return found._replace(advantages_N=found.advantages_N * self.share)
"""


def test_an_algorithm_of_a_file_has_its_hyperparameters_as_options(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN, encoding="utf-8")
    assert main(["rl", "--algorithm", "mine.py:Mine", "--help"]) == 0
    assert "--share 0.5" in capsys.readouterr().out
    _, knobs, *_ = read("rl", ["--algorithm", "mine.py:Mine", "--share", "0.25", "--clip-low", "0.1"])
    made = algorithm_of("online", "mine.py:Mine", knobs)
    assert (type(made).__name__, made.share, made.clip_low, made.kl_coefficient) == ("Mine", 0.25, 0.1, 0.04)
    for wrong, says in (("mine.py:Other", "has no class 'Other'; it has: Mine"), ("no.py:Mine", "no file 'no.py'")):
        assert main(["rl", "--algorithm", wrong]) == 2 and says in capsys.readouterr().err


def test_every_renamed_option_has_its_new_name_and_no_option_an_old_one():
    names = {name for command in COMMANDS.values() for name in kinds_of(command.form)}
    assert {*config_file.RENAMED.values()} <= names
    assert not config_file.RENAMED.keys() & names


def test_no_knob_has_the_name_of_an_option_of_rl():
    taken = {field.name for field in dataclasses.fields(COMMANDS["rl"].form)} | SHARED.keys()
    for name in ALGORITHMS:
        assert not taken & {field.name for field in dataclasses.fields(type(ALGORITHMS[name]()))}, name


def test_help_lists_all_commands_and_examples(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for name, command in COMMANDS.items():
        assert f"  {name} " in out and command.summary in out
    assert len(EXAMPLES) == 3
    assert all(example in out for example in EXAMPLES)


def test_help_imports_nothing_heavy():
    script = "import sys; from posttrain.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    assert not {"torch", "transformers", "datasets", "reasoning_gym"} & set(done.stderr.split())


def test_help_of_every_command_needs_no_package_of_an_extra():
    """A Python in which those of `lora`, `annotate` and `server` are not found that nothing else here needs."""
    extras = (
        "peft fastapi starlette uvicorn multipart python_multipart sqlalchemy alembic nh3 crowdkit krippendorff scipy "
        "tinker zstandard"
    )
    script = f"""
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {extras.split()!r} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from posttrain.cli import main
from posttrain.commands import COMMANDS
codes = {{(name, typed): main([*name.split(), typed]) for typed in ("--help", "--help-all") for name in COMMANDS}}
print([name for name, code in codes.items() if code], main(["annotate", "serve"]), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    missing, codes = done.stderr.splitlines()[-2:]
    assert codes == "[] 2"
    assert missing == "posttrain: the package 'fastapi' is not installed; type: pip install 'posttrain[annotate]'"


@pytest.mark.parametrize(
    ("asked", "spincount"), [({}, SPINCOUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "0")]
)
def test_threads_that_wait_for_each_other_soon_sleep_unless_told_otherwise(asked, spincount):
    """As OpenMP itself says that it understood it: the setting comes before torch loads it."""
    if sys.platform != "linux":
        pytest.skip("torch has GNU's OpenMP on Linux alone")
    script = "from posttrain.cli import main; main(['--version']); import torch"
    about = {k: v for k, v in environment().items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    told = about | asked | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=told)
    assert re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[1] == spincount


def test_without_a_command_help_goes_to_standard_error(run):
    code, out, err = run()
    assert (code, out) == (2, "") and err.startswith("usage: posttrain COMMAND")


def test_version(run):
    assert run("--version")[1].startswith("posttrain 0.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rll", "unknown command 'rll'; did you mean 'rl'? There are: advise, algorithms,"),
        ("models", "say which: posttrain models list or posttrain models pull"),
        ("models --json", "say which: posttrain models list or posttrain models pull"),
        ("models pul", "unknown command 'models pul'; did you mean 'models pull'?"),
        ("models pull smollm2-135m", "unknown packaged model 'smollm2-135m'; did you mean 'smollm2-135m-instruct'?"),
        ("--steps 3", "the command comes first, then its options; got '--steps'; see posttrain --help"),
        ("explain", "an algorithm is required: posttrain explain NAME, one of"),
        ("explain grop", "unknown algorithm 'grop'; did you mean 'grpo'?"),
        ("rl --algorithm grop --clip-low 3", "unknown algorithm 'grop'; did you mean 'grpo'?"),
        ("rl --kl-coeficient 3", "unknown option '--kl-coeficient'; did you mean '--kl-coefficient'?"),
        ("rl --clip-low -1", "clip_low must be a number of at least 0; got -1.0"),
        ("sft --kl-coefficient 0", "unknown option '--kl-coefficient'"),
        (
            "reward-model-attributes --ratings r.jsonl",
            "reward-model-attributes is reward-model --heads attributes now; type: posttrain reward-model --heads "
            "attributes, then the other options",
        ),
        ("reward-model --ratings r.jsonl", "--ratings is for --heads attributes; leave it out, or type --heads attr"),
        ("rl --importance-cap 2", "--importance-cap was renamed; type --tis-cap"),
        ("rl --renew_reference=2", "--renew_reference was renamed; type --ref-sync-every"),
        ("online-preference --reward-model-use worst", "--reward-model-use was renamed; type --ensemble-aggregation"),
        ("sft --importance-cap 2", "unknown option '--importance-cap'"),
        ("online-preference --iterate 5", "unknown option '--iterate'"),
        ("report", "a run is required: posttrain report RUN"),
        ("report nowhere", "no run at nowhere; expected a run directory"),
        ("sft --resume nowhere", "no run at nowhere; expected a run directory"),
        ("sft --config nowhere.toml", "no configuration at nowhere.toml"),
        ("sft --config a --resume b", "--resume takes its configuration from the run; leave out --config"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run, words, message):
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"posttrain: {message}") and err.count("\n") == 1


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `posttrain algorithms` raise."""

    def failing(error: BaseException) -> None:
        def fail(config: Any) -> None:
            raise error

        command = dataclasses.replace(COMMANDS["algorithms"], function=fail)
        monkeypatch.setitem(COMMANDS, "algorithms", command)

    return failing


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("two\nlines"), 2, "two lines"),
        (RewardError("it hung"), 1, "it hung"),
        (ValueError("odd"), 1, "unexpected ValueError: odd; run again with --debug to see where"),
        (AssertionError(), 1, "unexpected AssertionError; run again with --debug to see where"),
        (
            ModuleNotFoundError("No module named 'x'", name="x"),
            2,
            "the package 'x' is not installed; type: pip install x",
        ),
        (ModuleNotFoundError("nothing"), 1, "unexpected ModuleNotFoundError: nothing; run again with --debug"),
        (
            ModuleNotFoundError("no", name="posttrain.x"),
            1,
            "unexpected ModuleNotFoundError: no; run again with --debug",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(run, failing, error, code, line):
    failing(error)
    found, out, err = run("algorithms")
    assert (found, out) == (code, "")
    assert err.startswith(f"posttrain: {line}") and err.count("\n") == 1


def test_debug_shows_the_traceback(run, failing):
    failing(ValueError("odd"))
    code, _, err = run("algorithms", "--debug")
    assert code == 1 and "Traceback" in err and err.endswith("posttrain: unexpected ValueError: odd\n")


def test_a_reader_that_has_heard_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    script = "import sys; from posttrain.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, env=environment())
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_algorithms_as_json(run):
    code, out, _ = run("algorithms", "--json")
    rows = json.loads(out)
    (grpo,) = (row for row in rows if row["name"] == "grpo")
    assert code == 0 and {"family": "online", "paper": "2402.03300"}.items() <= grpo.items()
    assert [row["name"] for row in rows] == sorted(ALGORITHMS)


def test_algorithms_and_explain_for_people(run):
    table = run("algorithms")[1]
    assert "arXiv 2402.03300 " in table and "  Williams 1992 " in table
    assert "--kl-coefficient 0.04" in run("explain", "grpo")[1]


def test_models(run, monkeypatch):
    assert "not downloaded; type: posttrain models pull smollm2-135m-instruct" in run("models", "list")[1]
    (row,) = json.loads(run("models", "list", "--json")[1])
    assert (row["name"], row["path"]) == ("smollm2-135m-instruct", None)

    def pull(name: str, on_progress: packaged.OnProgress) -> Path:
        for fraction in (0.0, 0.5):
            on_progress("downloading", fraction)
        return Path("/there") / name

    monkeypatch.setattr(packaged, "pull", pull)
    code, out, err = run("models", "pull", "--json")
    assert (code, json.loads(out)) == (0, {"path": "/there/smollm2-135m-instruct"})
    assert err == "downloading\n"


def test_sft_its_run_its_report_and_its_repetition(run, sft, here):
    code, out, err = run(*sft, "--warmup-steps", "1", "--output", "first")
    assert code == 0
    assert "run     first" in out and "posttrain generate --model first" in out
    assert "sft 2/2" in err
    code, out, err = run("sft", "--config", "first/config.toml", "--output", "second", "--quiet", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer == {
        "run": "second",
        "steps": 2,
        "interrupted": "",
        "examples": 4,
        "dropped": 0,
        "before": None,
        "after": None,
    }
    losses = [[json.loads(line)["loss"] for line in (here / r / "metrics.jsonl").open()] for r in ("first", "second")]
    assert losses[0] == losses[1]
    assert run("report", "first")[1] == "first/report.html\n"
    assert run("report", "first", "second")[1] == "comparison.html\n" and (here / "comparison.html").is_file()


def test_flags_come_before_the_file_and_the_file_before_defaults(run, sft, here):
    (here / "my.toml").write_text("steps = 3\nseed = 5\n")
    run(*sft, "--config", "my.toml", "--seed", "6", "--output", "a", "--quiet")
    found = tomllib.loads((here / "a" / "config.toml").read_text())
    assert (found["steps"], found["seed"], found["keep_last"]) == (3, 6, 2)


def test_sft_resumed(run, sft, here):
    run(*sft, "--steps", "1", "--output", "a", "--quiet")
    code, out, _ = run("sft", "--resume", "a", "--steps", "2", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 2)
    code, _, err = run("sft", "--resume", "a", "--output", "b")
    assert code == 2 and "leave out --output" in err
    code, _, err = run("rl", "--resume", "a")
    assert code == 2
    assert err == "posttrain: a is a run of posttrain sft, not of posttrain rl; type: posttrain sft --resume a\n"


def test_a_run_with_renamed_options_is_resumed_and_its_file_is_refused_as_a_config(run, rl, here):
    run(*rl, "--steps", "1", "--tis-cap", "2", "--output", "a", "--quiet")
    config = here / "a" / "config.toml"
    earlier = config.read_text().replace("tis_cap", "importance_cap").replace("ref_sync_every", "renew_reference")
    config.write_text(earlier)
    (here / "earlier.toml").write_text(earlier)
    code, _, err = run("rl", "--config", "earlier.toml")
    assert code == 2 and "earlier.toml: 'renew_reference' was renamed; write 'ref_sync_every'" in err
    code, out, err = run("rl", "--resume", "a", "--steps", "2", "--quiet", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 2), err
    found = tomllib.loads(config.read_text())
    assert "tis_cap" in found and "importance_cap" not in found


def test_a_run_begins_with_what_it_computes_on_and_keeps_it(run, sft, here):
    _, _, err = run(*sft, "--output", "a")
    kept = json.loads((here / "a" / "environment.json").read_text())
    assert (kept["precision"], kept["precision_reason"]) == ("torch.float32", "`precision`")
    assert kept["threads"] >= 1 and kept["cpu_capability"] and isinstance(kept["cpu_features"], list)
    first = err.splitlines()[0]
    assert first.startswith(kept["cpu"]) and first.endswith(" float32 (--precision)") and " thread" in first
    assert all(name in first for name in kept["cpu_features"])
    _, _, err = run("sft", "--config", "a/config.toml", "--precision", "auto", "--output", "b")
    assert "(matrix products in bfloat16 are " in err.splitlines()[0]


def test_a_run_that_goes_on_for_longer_says_what_happens_to_its_learning_rate(run, sft, rl, here):
    run(*sft, "--warmup-steps", "0", "--lr", "1", "--decay", "linear", "--steps", "2", "--output", "a", "--quiet")
    _, _, err = run("sft", "--resume", "a", "--steps", "4")
    assert "4 steps now, 2 when it began: the linear decay of the learning rate now ends after step 4, not 2" in err
    assert "it was 0.5 at step 2 and is 0.5 at step 3" in err
    _, _, err = run("sft", "--resume", "a", "--steps", "5")  # the run has four steps now
    assert "5 steps now, 4 when it began" in err
    run(*rl, "--output", "b", "--quiet")
    assert "when it began" not in run("rl", "--resume", "b")[2]
    assert (
        "3 steps now, 2 when it began: the learning rate is constant" in run("rl", "--resume", "b", "--steps", "3")[2]
    )


def test_a_run_goes_on_from_the_model_that_it_began_with(run, sft, here):
    """The name of a run means its best checkpoint, which is another one once more has been trained."""
    pytest.importorskip("peft")
    (here / "held.jsonl").write_text('{"prompt": "9", "completion": "10"}\n')
    more = ["--eval-dataset", "held.jsonl", "--warmup-steps", "1", "--lr", "1e-3", "--keep-last", "9"]
    run(*sft, *more, "--steps", "1", "--output", "first", "--quiet")
    adapter = ["--model", "first", "--lora-rank", "2", "--warmup-steps", "1", "--steps", "1"]
    run(*sft, *adapter, "--output", "second", "--quiet")
    kept = json.loads((here / "second" / "environment.json").read_text())
    assert kept["model"] == str(here / "first/checkpoints/step-000001")
    run("sft", "--resume", "first", "--steps", "4", "--quiet")
    best = json.loads((here / "first" / "checkpoints" / "best.json").read_text())
    assert best["name"] == "step-000004"
    code, _, err = run("sft", "--resume", "second", "--steps", "2", "--quiet")
    about = json.loads((here / "second" / "checkpoints" / "step-000002" / "adapter_config.json").read_text())
    assert code == 0 and about["base_model_name_or_path"].endswith("first/checkpoints/step-000001"), err
    (here / "first" / "checkpoints" / "step-000001").rename(here / "elsewhere")
    code, _, err = run("sft", "--resume", "second", "--steps", "3")
    assert code == 2 and err.startswith(
        f"posttrain: second was started from {here}/first/checkpoints/step-000001, which was not found, and first is "
        "first/checkpoints/step-000004 now; restore the first, or start a new run from the second"
    )


def test_rl_says_what_it_leaves_out_and_what_it_takes_twice(run, rl, here):
    asked = [json.loads(line) for line in (here / "tasks.jsonl").open()]
    held = [asked[0], {"prompt": "9", "answer": "9"}]
    (here / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    more = ["--eval-dataset", "held.jsonl", "--eval-every", "2", "--prompts-per-step", str(len(asked) + 1)]
    code, _, err = run(*rl, *more, "--warmup-steps", "2", "--output", "a")
    said = " ".join(err.split())
    assert code == 0 and "1 held-out rows are also in the training data" in said
    assert f"--prompts-per-step {len(asked) + 1} of {len(asked)} tasks: some are in a step twice" in said
    assert "--warmup-steps 2 of 2 steps" in said


def test_rl_its_knobs_and_its_repetition(run, rl, here):
    code, out, _ = run(*rl, "--kl-coefficient", "0", "--output", "a", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 2)
    found = tomllib.loads((here / "a" / "config.toml").read_text())
    assert found["knobs"]["kl_coefficient"] == 0 and found["knobs"]["clip_low"] == 0.2
    assert run("rl", "--config", "a/config.toml", "--clip-low", "0.1", "--output", "b", "--quiet")[0] == 0
    again = tomllib.loads((here / "b" / "config.toml").read_text())
    assert again == found | {"knobs": found["knobs"] | {"clip_low": 0.1}}
    code, out, err = run("rl", "--resume", "a", "--steps", "3")
    assert code == 0 and "rl 3/3" in err and "run     a" in out


def test_rl_reports_accuracies_with_intervals(run, rl, here):
    (here / "held.jsonl").write_text('{"prompt": "9", "answer": "9"}\n')
    held = ["--eval-dataset", "held.jsonl", "--eval-every", "2", "--eval-samples", "2"]
    code, out, _ = run(*rl, *held, "--output", "a", "--json")
    answer = json.loads(out.splitlines()[-1])
    assert code == 0 and {"before", "before_ci95", "after", "after_ci95"} <= answer.keys()
    assert answer["after_ci95"][0] <= answer["after"] <= answer["after_ci95"][1]
    code, out, _ = run("rl", "--resume", "a", "--steps", "3", "--json")
    resumed = json.loads(out.splitlines()[-1])
    assert code == 0 and (resumed["before"], resumed["before_ci95"]) == (answer["before"], answer["before_ci95"])


def test_a_reward_without_bounds_has_no_accuracy(run, rl, model, here):
    (here / "mine.py").write_text("def length(completion): return 2.0 + len(completion)\n")
    (here / "held.jsonl").write_text('{"prompt": "9", "answer": "9"}\n{"prompt": "8", "answer": "8"}\n')
    held = ["--eval-dataset", "held.jsonl", "--eval-every", "1", "--reward", "mine.py:length", "--output", "a"]
    code, out, err = run(*rl, *held, "--json")
    rows = [json.loads(line) for line in (here / "a" / "metrics.jsonl").open()]
    assert code == 0 and not any(name.endswith("accuracy") for row in rows for name in row) and "accuracy" not in err
    answer = json.loads(out.splitlines()[-1])
    assert answer["before"]["reward"] >= 2 and answer["after"]["reward"] >= 2
    words = ["evaluate", "--model", model, "--dataset", "held.jsonl", "--reward", "mine.py:length"]
    code, out, _ = run(*words, "--max-new-tokens", "3", "--baseline", model, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and "accuracy" not in found and "accuracy" not in found["greedy"] and found["pass_at"] == {}
    assert found["ci95"][0] <= found["reward"] <= found["ci95"][1] and found["difference"]["greedy"]["value"] == 0
    assert "mean reward" in run(*words, "--max-new-tokens", "3")[1]


def test_json_is_the_last_line_of_standard_output(run, model, here):
    (here / "held.jsonl").write_text('{"prompt": "9", "answer": "9"}\n')
    words = ["evaluate", "--model", model, "--dataset", "held.jsonl", "--reward", "exact", "--max-new-tokens", "3"]
    code, out, _ = run(*words, "--json")
    answer = json.loads(out.splitlines()[-1])
    assert code == 0 and {"accuracy", "n", "ci95", "unparsed"} <= answer.keys()
    code, out, _ = run("generate", "--model", model, "--prompt", "1+1", "--max-new-tokens", "3", "--json")
    assert code == 0 and len(json.loads(out.splitlines()[-1])["completions"]) == 1


@pytest.mark.parametrize(("sent", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(sft, here, sent, expected):
    # a test that runs in the background may have inherited that Ctrl-C is ignored
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from posttrain.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [*sft, "--steps", "100000", "--save-every", "100000", "--output", "a run"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words], stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stderr is not None
    seen = process.stderr.readline() + process.stderr.readline()  # what it computes on; the first step is done
    process.send_signal(sent)
    rest = process.communicate(timeout=300)[1]
    assert process.returncode == expected, seen + rest
    assert rest.endswith("saved; resume with: posttrain sft --resume 'a run'\n")
    assert f"stopped by {sent.name} after step" in rest
    assert list((here / "a run" / "checkpoints").glob("step-*"))


def test_a_run_stopped_before_its_first_step_cannot_be_gone_on_with(run, monkeypatch):
    @dataclasses.dataclass
    class Result:
        run: Path
        steps: int
        interrupted: str
        before: None = None
        after: None = None

    def stopped(config: Any, cluster: Any, **shared: Any) -> Result:
        return Result(Path("a"), 0, "SIGTERM")

    monkeypatch.setitem(COMMANDS, "sft", dataclasses.replace(COMMANDS["sft"], function=stopped))
    code, out, err = run("sft")
    assert code == 143 and "--resume" not in err and "generate" not in out


@pytest.mark.parametrize("best, said", [(4, True), (8, False), (None, False)])
def test_the_checkpoint_that_a_runs_name_loads_is_said_where_it_is_not_the_last(best, said):
    held_out = {"accuracy": 1.0, "pairs": 6.0}
    found = SimpleNamespace(
        run=Path("a"), steps=8, best_step=best, before={"accuracy": 0.5, "pairs": 6.0}, after=held_out
    )
    lines = COMMANDS["preference"].show(found)
    assert lines[0] == "held-out pair accuracy: 0.500 before, 1.000 after, of 6 pairs"
    assert ("best    step 4 of 8 by held-out score, which the run's name loads" in lines) is said


def test_verify_fails_where_an_item_does(run, monkeypatch):
    @dataclasses.dataclass
    class Item:
        name: str
        passed: bool
        measured: float = 2.0
        bound: float = 1.0

        def line(self) -> str:
            return f"{self.name} {self.passed}"

    def verify(*items: Item) -> None:
        command = dataclasses.replace(
            COMMANDS["verify"],
            declared="lookup.Algorithms",
            function=lambda config, cluster, quiet: list(items),
            fetches=lambda _: "",
        )
        monkeypatch.setitem(COMMANDS, "verify", command)

    verify(Item("a", True), Item("b", False))
    code, out, _ = run("verify", "--json")
    assert code == 1 and [item["passed"] for item in json.loads(out)["items"]] == [True, False]
    assert run("verify")[1] == "a True\nb False\n"
    verify(Item("a", True))
    assert run("verify", "--json")[0] == 0


def test_a_table_as_text():
    table = Table("T", ("model", "pass@1", "thinks"), [("base", Estimate(0.25, 0.2, 0.3), None)], note="n")
    assert table.lines() == [
        "T",
        "model  pass@1                  thinks",
        "base   0.250 (0.200 to 0.300)  -",
        "",
        "n",
    ]


def documented() -> list[str]:
    """Every command in a block of the documents and of the recipes' docstrings."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]
    found: list[str] = []
    for file in filter(Path.exists, files):  # the mutants' copy of the project has no documents
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        found += re.findall(r"^(?: {4})?(posttrain [a-z].*)$", text, re.MULTILINE)
    return [*EXAMPLES, *dict.fromkeys(line for line in found if "..." not in line)]


@pytest.mark.parametrize("line", documented())
def test_commands_in_the_documents_are_real(line, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])  # they name files of the repository
    name, argv = find(shlex.split(line, comments=True)[1:])
    assert read(name, argv)


def test_report_of_a_run_of_several_parts(run, here):
    with (
        RunDirectory.create(here / "a", "quickstart", {}),
        RunDirectory.create(here / "a/rl", "rl", {}) as part,
    ):
        code, _, err = run("report", "a")
        assert (code, err) == (2, "posttrain: a has no metrics yet; wait until its first step is finished\n")
        part.log_metrics(1, {"loss": 0.5})
        assert run("report", "a") == (0, "a/report.html\n", "")
    code, _, err = run("report", "a")
    assert code == 2 and "give --output to write a report without it elsewhere" in err
    assert run("report", "a", "--output", "b.html") == (0, "b.html\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--callback", "'a.py:A"],
            'cannot read --callback "\'a.py:A": No closing quotation; put a path with spaces in',
        ),
        (
            ["--track-project", "p"],
            "--track-project, --track-name and --track-tags need a tracker: pass --tra",
        ),
        (
            ["--track-tags", "t"],
            "--track-project, --track-name and --track-tags need a tracker: pass --track",
        ),
    ],
)
def test_what_is_wrong_with_trackers_and_callbacks_is_said_before_anything_is_loaded(run, here, words, said):
    code, out, err = run("sft", "--dataset", "none.jsonl", *words)
    assert (code, out) == (2, "") and said in err


if __name__ == "__main__":
    SURFACE.write_text(surface(), encoding="utf-8")
