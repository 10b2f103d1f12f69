"""What the command offers, and what it refuses before it serves."""

import pytest

from posttrain.cli import main
from posttrain.errors import UserError
from posttrain.options.services import Jobs
from posttrain.recipes import jobs as serve


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """A packaged model that has been fetched."""
    monkeypatch.setattr(serve, "cached", {"smollm2-135m-instruct": tmp_path / "cache"}.__getitem__)  # no other has one
    return tmp_path / "cache"


def test_models_have_names(tiny, packaged):
    found = serve.offered_by(Jobs(models=f"smollm2-135m-instruct mine={tiny} 'a name'={tiny}"), [])
    assert found.models == {"smollm2-135m-instruct": "smollm2-135m-instruct", "mine": str(tiny), "a name": str(tiny)}


def test_where_models_are_is_hidden(tiny, packaged, tmp_path):
    (tmp_path / "link").symlink_to(tiny)
    found = serve.offered_by(Jobs(models=f"smollm2-135m-instruct mine={tmp_path / 'link'}"), [])
    assert found.hidden == {
        str(packaged): "smollm2-135m-instruct",
        str(tiny.resolve()): "mine",
        str(tmp_path / "link"): "mine",
    }


def test_so_is_where_data_sets_are(packaged, tmp_path):
    assert serve.offered_by(Jobs(datasets=str(tmp_path)), []).hidden[f"{tmp_path}/"] == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"models": ""}, "at least one"),
        ({"models": "other"}, "unknown packaged model 'other'"),
        ({"models": "a=/nowhere"}, "no folder with a model's"),
        ({"models": "'a"}, "cannot read `models="),
        ({"datasets": "/nowhere"}, "is no folder"),
        ({"trusted": "alice bob"}, "key in --trusted: 'bob'"),
    ],
)
def test_what_cannot_be_offered_is_refused(options, says, packaged):
    with pytest.raises(UserError, match=says):
        serve.offered_by(Jobs(**options), ["alice"])


def test_a_packaged_model_is_fetched_first(monkeypatch):
    monkeypatch.setattr(serve, "cached", lambda name: None)
    with pytest.raises(UserError, match="posttrain models pull"):
        serve.models_of("smollm2-135m-instruct")


def test_keys_are_made_and_ended_and_without_any_nothing_is_served(tmp_path, capsys):
    words = ["jobs", "--root", str(tmp_path / "root")]
    assert main(words) == 2 and "every client needs one" in capsys.readouterr().err
    assert main([*words, "--add-key", "alice"]) == 0
    secret = capsys.readouterr().out.strip()
    keys = tmp_path / "root/keys.json"
    assert secret.startswith("tml-") and secret not in keys.read_text() and keys.stat().st_mode & 0o77 == 0
    assert main([*words, "--keys", str(tmp_path / "others.json"), "--remove-key", "alice"]) == 2
    assert main([*words, "--remove-key", "alice"]) == 0
    assert main(words) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *((["--port", port], "--port must be 1 to 65535") for port in ("0", "65536")),
        *(([f"--{name}", "0"], f"--{name} must be above 0") for name in ("max-hours", "gb-per-key")),
        *(([f"--{name}", "0"], f"--{name} must be 1 or more") for name in ("at-once", "queued-per-key")),
        (["--max-request-mb", "nan"], "--max-request-mb must be above 0"),
        (["--grace-seconds", "-1"], "--grace-seconds must be 0 or more"),
    ],
)
def test_numbers_are_checked(tmp_path, capsys, options, says):
    main(["jobs", "--root", str(tmp_path), "--add-key", "alice"])
    assert main(["jobs", "--root", str(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err
