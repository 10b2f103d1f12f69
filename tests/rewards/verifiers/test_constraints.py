"""Each kind of constraint with responses written by hand that follow it and that do not; and the rewards of them."""

import asyncio
import json
import time

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import KINDS, TIME_LIMITS, ConstraintsVerifier, FormatVerifier, parse_rewards
from posttrain.rewards.combine import unreadable_answers
from posttrain.rewards.verifiers.constraint_kinds import sentences
from tests.rewards.episodes import episode, score

AT_LEAST, LESS = "at least", "less than"

# kind, arguments, responses that follow it, responses that do not
BY_HAND = [
    ("keywords:existence", {"keywords": ["Moon", "tide"]}, ["The moon pulls the tides."], ["The moon is far."]),
    (
        "keywords:frequency",
        {"keyword": "tea", "frequency": 2, "relation": AT_LEAST},
        ["Tea, then more tea."],
        ["Tea once."],
    ),
    (
        "keywords:frequency",
        {"keyword": "tea", "frequency": 2, "relation": LESS},
        ["Tea once.", "Coffee."],
        ["tea tea", "Steam and tea"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["rock", "c++"]},
        ["A rocket starts."],
        ["Rock music", "a (rock)", "I write C++ here"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "z", "let_frequency": 2, "let_relation": AT_LEAST},
        ["Zigzag", "pizza"],
        ["zoo"],
    ),
    ("keywords:letter_frequency", {"letter": "!", "let_frequency": 2, "let_relation": LESS}, ["Oh!"], ["Oh! No!"]),
    (
        "language:response_language",
        {"language": "de"},
        ["Das Haus am See ist alt, und wir wohnen seit zehn Jahren darin."],
        ["The house by the lake is old, and we have lived in it for ten years.", "12345"],
    ),
    (
        "language:response_language",
        {"language": "hi"},
        ["नदी के किनारे एक पुराना घर है और हम वहाँ रहते हैं।"],
        ["Nadi ke kinare ek purana ghar hai."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": AT_LEAST},
        ["One. Two! Three?", "Eins. Zwei. Und noch eins"],
        ["Dr. Smith paid 3.50 to J. Doe. Then he left."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": LESS},
        ["Only one, e.g. this."],
        ["One. Two."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["One\n***\nTwo", "***\nOne\n***\nTwo\n***"],
        ["One\n\nTwo", "One\n***\nTwo\n***\nThree", "One\n***\n***\nTwo"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": AT_LEAST},
        ["I don't drink well-brewed tea"],
        ["Three words only", "- - - - -"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": LESS},
        ["Three words only"],
        ["one two three four"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ['First.\n\n"Weekend!" he said.', "First.\n\n\nweekend plans"],
        ["Weekend.\n\nThen", "First.\n\nWeekends are", "First.\n\nweekend\n\nthird"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["Dear [name], see [place]."],
        ["Dear [name].", "[ and ]\n[", "]["],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\n\nP.S. Write soon", "Bye.\n**P. S.** more"],
        ["Bye.", "The GP.S. system", "Bye. P.S: more"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.S. a\nP.P.S. b"], ["P.S. a"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b"],
        ["* a", "* a\n* b\n* c", "**bold**\n* a", "a - b", "- a\n---\n- b"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well. My answer is maybe."],
        ["Yes.", "my answer is yes"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**bold** and *b*"],
        ["*a*", "* item\n* item", "****"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\nx\nSection 2\ny"],
        ["Section 1\nx", "Section one\nSection two"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', "```json\n[1, 2]\n```"],
        ["{a: 1}", 'So: {"a": 1}', "[" * 9999],
    ),
    ("detectable_format:title", {}, ["<<Ode to tea>>\nO tea"], ["Ode to tea", "<<>>", "<< >>", "<<\t>>", "<a>"]),
    (
        "combination:two_responses",
        {},
        ["Tea.\n******\nCoffee."],
        ["Tea.", "Tea.\n******\nTea.", "a ****** b ****** c", "Tea.\n******"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Name a tea."},
        ["name a TEA. Assam."],
        ["Assam.", "I was asked: Name a tea. Assam."],
    ),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, ['So. any questions?"'], ["Any questions? Ask."]),
    ("startend:quotation", {}, ['"All of it."', ' "a" '], ['"', "All of it.", '"Half" of it.']),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": AT_LEAST},
        ["STOP and LOOK"],
        ["Stop And LOOK"],
    ),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": LESS}, ["Stop"], ["STOP"]),
    (
        "change_case:english_capital",
        {},
        ["WE LIVE IN THE HOUSE BY THE RIVER."],
        ["We LIVE IN THE HOUSE", "WIR WOHNEN SEIT ZEHN JAHREN IN DIESEM HAUS"],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["we live in the house by the river."],
        ["We live in the house by the river.", "wir wohnen seit zehn jahren in diesem haus"],
    ),
    ("punctuation:no_comma", {}, ["No pause here; none."], ["Well, no."]),
    ("pattern", {"pattern": r"[A-Z]{2}-\d+"}, ["AB-12"], ["AB-12.", "ab-12"]),
    (
        "json_schema",
        {"schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 9}}}},
        ['{"n": 3}', '```\n{"n": 9}\n```'],
        ['{"n": 10}', '{"n": "3"}', "{}", "n = 3"],
    ),
]


@pytest.mark.parametrize(
    ("kind", "given", "follow", "miss"), BY_HAND, ids=[f"{row[0]}-{n}" for n, row in enumerate(BY_HAND)]
)
def test_by_hand(kind, given, follow, miss):
    strict = ConstraintsVerifier()
    for text in follow:
        got = score(strict, text, None, constraints=[{"kind": kind, **given}])
        assert (got.value, got.explanation) == (1.0, ""), text
    for text in miss:
        got = score(strict, text, None, constraints=[{"kind": kind, **given}])
        assert got.value == 0.0 and got.explanation.startswith(f"not followed: {kind}"), text


def test_each_kind_has_a_row():
    assert {row[0] for row in BY_HAND} == set(KINDS) and len(KINDS) == 27


def test_all_or_a_share_of_them():
    asked = ["punctuation:no_comma", {"kind": "keywords:existence", "keywords": ["tea"]}, "detectable_format:title"]
    said = "Tea, please"
    assert score(ConstraintsVerifier(), said, None, constraints=asked).value == 0.0
    got = score(ConstraintsVerifier(partial_credit=True), said, None, constraints=asked)
    assert got.value == pytest.approx(1 / 3)
    assert got.explanation == "not followed: punctuation:no_comma, detectable_format:title"


def test_reasoning_is_left_out_and_silence_is_unparsed():
    asked = ["punctuation:no_comma"]
    assert score(ConstraintsVerifier(), "<think>well, hm</think> Tea.", None, constraints=asked).value == 1.0
    got = score(ConstraintsVerifier(), "<think>well</think> \n", None, constraints=asked)
    assert (got.value, got.unparsed) == (0.0, True)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"kind": "combination:repeat_prompt", "prompt_to_repeat": "Name a tea."}, "Sure:\nName a tea. Assam."),
        ({"kind": "startend:end_checker", "end_phrase": "Bye."}, "Tea.\nBye.\nI hope this helps!"),
        ("startend:quotation", 'Sure:\n"Tea."\nThat is it'),
        ({"kind": "detectable_format:number_bullet_lists", "num_bullets": 0}, "**\n*a"),
    ],
)
def test_loose_forgives_a_line_before_one_after_and_asterisks(kind, said):
    assert score(ConstraintsVerifier(), said, None, constraints=[kind]).value == 0.0
    assert score(ConstraintsVerifier(loose=True), said, None, constraints=[kind]).value == 1.0


def test_what_is_left_of_nothing_follows_nothing():
    got = score(ConstraintsVerifier(loose=True), "a, b", None, constraints=["punctuation:no_comma"])
    assert got.value == 0.0  # without its only line it has no comma


def test_the_columns_of_ifeval():
    columns = {
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{"keywords": None, "relation": None}, {"keywords": ["tea"], "relation": None}],
    }
    assert score(ConstraintsVerifier(), "tea", None, **columns).value == 1.0
    assert score(ConstraintsVerifier(partial_credit=True), "a, b", None, **columns).value == 0.0


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({}, "its column constraints must be a list of kinds"),
        ({"constraints": []}, "its column constraints must be a list of kinds"),
        ({"constraints": "punctuation:no_comma"}, "must be a list"),
        ({"constraints": [3]}, "a constraint is 3; expected the name of a kind"),
        (
            {"constraints": ["punctuation:no_coma"]},
            "did you mean 'punctuation:no_comma'",
        ),
        ({"constraints": [{"kind": "keywords:existence"}]}, "'keywords:existence' is missing a required argument"),
        ({"constraints": [{"kind": "keywords:existence", "words": ["a"]}]}, "keywords"),
        (
            {"constraints": [{"kind": "length_constraints:number_words", "num_words": 3, "relation": "at most"}]},
            "expected one of at least, less than",
        ),
        ({"constraints": [{"kind": "pattern", "pattern": "("}]}, "the pattern '\\(' cannot be read"),
        ({"constraints": [{"kind": "json_schema", "schema": {"type": "text"}}]}, "JSON schema cannot be read"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}, {}]}, "1 instructions have 2 kwargs"),
    ],
)
def test_what_cannot_be_checked_is_said_of_the_task(columns, says):
    with pytest.raises(RewardError, match=f"task 't'.*{says}"):
        score(ConstraintsVerifier(), "", None, **columns)


def test_a_pattern_has_a_time_limit():
    began = time.monotonic()
    got = score(FormatVerifier("pattern"), f"<answer>{'a' * 60}</answer>", None, pattern="(a|aa)+(a|aaa)+b")
    assert got.value == 0.0 and time.monotonic() - began < 10
    schema = {"type": "string", "pattern": "^(a|aa)+(a|aaa)+b$"}
    said = f"<answer>{json.dumps('a' * 60)}</answer>"
    assert score(FormatVerifier("json_schema"), said, None, json_schema=schema).value == 0.0


def test_forms_by_argument_and_by_column(tmp_path):
    (tmp_path / "s.json").write_text('{"type": "array", "items": {"type": "integer"}}')
    rewards = parse_rewards({"json_schema": {"given": str(tmp_path / "s.json")}, "pattern": {"given": r"\[.*\]"}})
    assert rewards.weights == {"json_schema": 1.0, "pattern": 1.0}
    both = [part for part, _ in rewards.parts]
    assert [score(one, "<answer>[1, 2]</answer>").value for one in both] == [1.0, 1.0]
    assert [score(one, "<answer>[1, 2.5]</answer>").value for one in both] == [0.0, 1.0]
    assert score(FormatVerifier("pattern"), "no tags", None, pattern="a").unparsed
    with pytest.raises(RewardError, match="'pattern' needs the column pattern; task 't' has none"):
        score(FormatVerifier("pattern"), "<answer>a</answer>")
    with pytest.raises(UserError, match="JSON schema"):
        FormatVerifier("json_schema", str(tmp_path / "nowhere.json"))


def test_a_schema_fetches_nothing():
    asked = {"$ref": "https://127.0.0.1:1/schema.json"}
    with pytest.raises(RewardError, match="another document"):
        score(FormatVerifier("json_schema"), "<answer>1</answer>", None, json_schema=asked)


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("One", 1), ("One.", 1), ('"One." Two.', 2), ("Wait... what?!", 2), ("今日は。元気？", 2), ("A.B.", 1)],
)
def test_sentences(text, count):
    assert sentences(text) == count


def test_a_row_that_cannot_be_checked_is_found_before_sampling():
    rows = [episode("", None, constraints=[kind]).task for kind in ("no:such", "startend:quotation")]
    told = asyncio.run(unreadable_answers(ConstraintsVerifier(), rows))
    assert "unknown constraint 'no:such'" in told[0] and told[1] == ""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("pattern", "json_schema")])
def test_no_text_costs_more_than_its_length(kind):
    given = next(row[1] for row in BY_HAND if row[0] == kind)
    began = time.monotonic()
    for text in ("." * 200_000 + "x", "<" * 200_000, "*" * 200_001, "[" * 200_000, "`" * 200_000, "- " * 100_000):
        KINDS[kind](text, **given)
    assert time.monotonic() - began < 20  # the square of 200,000 takes hours


@pytest.mark.parametrize("said", ["NaN", "-Infinity", "1e400", "1" + "0" * 400 + ".5"])
def test_what_json_has_no_word_for_is_no_number(said):
    schema = {"type": "number", "minimum": 0, "maximum": 9}
    assert score(FormatVerifier("json_schema"), f"<answer>{said}</answer>", None, json_schema=schema).value == 0.0
    assert score(FormatVerifier("json_schema"), "<answer>9.0</answer>", None, json_schema=schema).value == 1.0


def test_a_number_that_cannot_be_divided_is_an_answer_not_an_error():
    schema = {"type": "number", "multipleOf": 0.01}
    said = "1" + "0" * 400
    assert score(FormatVerifier("json_schema"), f"<answer>{said}</answer>", None, json_schema=schema).value == 0.0


def test_a_pattern_behind_a_reference_to_the_whole_has_the_time_limit():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"name": {"pattern": "^(a+)+$"}, "child": {"$ref": "#"}},
    }
    value = {"name": "a", "child": {"name": "a" * 60 + "!"}}
    began = time.monotonic()
    said = f"<answer>{json.dumps(value)}</answer>"
    assert score(FormatVerifier("json_schema"), said, None, json_schema=schema).value == 0.0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("json_schema", {"$ref": "#/$defs/x"}, r"#/\$defs/x is not in it"),
        ("json_schema", {"patternProperties": {"a": {}}}, "patternProperties have no time limit"),
        ("json_schema", 5, "expected an object"),
        ("json_schema", "null", "expected an object"),
        ("json_schema", {"pattern": "("}, "the pattern '\\(' cannot be read"),
        ("pattern", 5, "the pattern 5 cannot be read: expected text"),
    ],
)
def test_a_form_that_is_none_is_said_of_the_task(kind, given, says):
    with pytest.raises(RewardError, match=f"task 't'.*{says}"):
        score(FormatVerifier(kind), "<answer>1</answer>", None, **{kind: given})


def test_letters_of_all_alphabets_are_a_pattern():
    schema = {"type": "string", "pattern": r"^\p{L}+$"}
    assert score(FormatVerifier("json_schema"), '<answer>"été"</answer>', None, json_schema=schema).value == 1.0


def test_a_language_that_cannot_be_told_is_refused():
    asked = [{"kind": "language:response_language", "language": "english"}]
    with pytest.raises(RewardError, match="the language 'english' is none that can be told"):
        score(ConstraintsVerifier(), "Tea.", None, constraints=asked)


def test_a_verdict_of_the_clock_is_used_again(tmp_path):
    text = f"<answer>{'a' * 60}</answer>"
    with TIME_LIMITS.kept_in(tmp_path):
        assert score(FormatVerifier("pattern"), text, None, pattern="(a|aa)+(a|aaa)+b").value == 0.0
        assert len((tmp_path / "timeouts.jsonl").read_text().splitlines()) == 1
        began = time.monotonic()
        assert score(FormatVerifier("pattern"), text, None, pattern="(a|aa)+(a|aaa)+b").value == 0.0
        assert time.monotonic() - began < 0.5
