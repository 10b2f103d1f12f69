"""What stands around an answer, what algebra drops of it, and what it would cost."""

from tests.mutations import Mutation

BOTH = "rewards/verifiers/test_math.py rewards/verifiers/test_formula.py"
MUTATIONS = [
    *(
        Mutation("rewards/verifiers/formula.py", old, new, BOTH)
        for old, new in [
            (" or dropped(answer, gold):", ":"),
            ("if label := label_of_others(answer, gold):", "if label := None:"),
            ("if extra := narrower(answer, gold):", "if extra := None:"),
            ("if what := too_many(text):", "if what := None:"),
            ("if highest_power(text) > MAX_EXPONENT:", "if False:"),
            ("if terms_multiplied_out(text) > MAX_TERMS:", "if False:"),
            ("if _POWER_OF_MATRIX.search(text):", "if False:"),
            ("MAX_LETTERS = 9 ", "MAX_LETTERS = 99 "),
            ("MAX_DEPTH = 12", "MAX_DEPTH = 25"),
            ("propto|to|implies)(?![A-Za-z])", "propto|to|implies)\\b"),
            ('if re.search(r"[0-9]\\s*\\\\\\$\\s*[0-9]", answer):', "if False:"),
            ("if (dangling := _DANGLING.search(answer))", "if (dangling := None)"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/math.py", old, new, BOTH)
        for old, new in [
            ("and not differs_by_little(*pair):", "and True:"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/exact.py", old, new, "rewards/verifiers/test_boxes.py")
        for old, new in [("if equal and self.answer_in", "if False and self.answer_in")]
    ),
    *(
        Mutation("rewards/verifiers/boxes.py", old, new, "rewards/verifiers/test_boxes.py")
        for old, new in [
            ('if _hidden(before):\n        return "the box', 'if False:\n        return "the box'),
            ("if not _fits_before(before[-_NEAR:], formula, box, question):", "if False:"),
            ("if not _fits_after(after[:_NEAR], formula is not None, question):", "if False:"),
            ("if _TAKEN_BACK.search(after) or any(", "if any("),
            ("or any(said not in (None, parse_number(box)) for said in declared)", ""),
            ("not in (None, box) for other in", "in () for other in"),
            ("if formula is not None and not _FORMULA_CLOSES.search(after):", "if False:"),
            ("if _SAID_BEFORE.search(left):", "if False:"),
            ("return _ROUNDED.search(question) is not None", "return False"),
            ('if number is None or not left.endswith("=") or', "if True or"),
            ("if _ANOTHER.match(line) or", "if"),
            ("or joined or", "or"),
        ]
    ),
    *(
        Mutation(f"rewards/verifiers/{file}.py", old, new, "rewards/verifiers/test_boxes.py")
        for file, old, new in [
            ("boxes", "braced(outside_reasoning(completion))", "outside_reasoning(completion)"),
            ("extraction", "_last_boxed(braced(outside))", "_last_boxed(outside)"),
            ("extraction", r"(?![ \t]*[\w^{]|[.,][0-9])", ""),
            ("extraction", r"|(?=[-+.]?[0-9]|\\[A-Za-z]|[A-Za-z][0-9^_])", ""),
            ("prose", "braced(text[-MAX_CHARACTERS:])", "text[-MAX_CHARACTERS:]"),
            ("surroundings", "completion = braced(completion) if", "completion = completion if"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/dropped.py", old, new, "rewards/verifiers/test_formula.py")
        for old, new in [
            ("if (mark := _MARK_OF_TEXT.search(text)) and", "if (mark := None) and"),
            ("and not _UNIT_OF_TEXT.fullmatch(text):", ":"),
            ("for pattern in (_NEEDS_MORE, _INSIDE):", "for pattern in (_INSIDE,):"),
            ("for pattern in (_NEEDS_MORE, _INSIDE):", "for pattern in (_NEEDS_MORE,):"),
            ("for opens, closes in _PAIRS:", "for opens, closes in ():"),
            ("and not _is_of_number(answer, gold):", "and False:"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/labels.py", old, new, "rewards/verifiers/test_formula.py")
        for old, new in [
            ("if several or assigned != sorted(assigned) else None", "if False else None"),
            ("if names != sorted(names) else None", "if False else None"),
            ("and letters and names[1:] and not", "and False and not"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/near.py", old, new, "rewards/verifiers/test_formula.py")
        for old, new in [
            ("LITTLE = 1e-20", "LITTLE = 0.0"),
            ("_DIGITS = 5000", "_DIGITS = 50"),
            ("return [sides.lhs - sides.rhs, sides.rhs - sides.lhs]", "return []"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/powers.py", old, new, BOTH)
        for old, new in [
            ("* (4 if rooted else 1)", ""),
            ("* max(inner, default=1)", ""),
            ("size * exponent > _MOST_DIGITS", "False"),
            ("if len(pattern.findall(text)) > most:", "if len(pattern.findall(text)) > most + 9:"),
        ]
    ),
]
