"""Faults in how a choice is read, and in what stands around an answer, in its place and in prose."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("rewards/verifiers/choice.py", old, new, "rewards/verifiers/test_choice.py")
        for old, new in [
            ("as (?=(?:it|this|that|he|she|they|we|the)\\b|(?-i:[A-Z])))", "as (?=\\w))"),
            ("or not _is_lead(before)", "or False"),
            ('letter[1] == "I" and', "False and"),
            ("or _TURNS.search(after)", ""),
            ("if _other_letters(after, letter[1]) or", "if"),
            ("return not any(_names(", "return not all(_names("),
            ("and not _other_letters(after", "and True or not _other_letters(after"),
            ("letter == right), letter", "letter != right), letter"),
            ("0 <= answer <", "0 <= answer <="),
            ("0 <= answer <", "answer <"),
            ("and not isinstance(answer, bool)", ""),
            ('" ".join(plain.split())', "plain"),
            ("letter = alone[1].upper() if", "letter = alone[1] if"),
            ("return None if _denied(text, text.index", "return None if False and _denied(text, text.index"),
            ("denied = spoiled or _DENIED_WHOLE.match(text) is not None", "denied = spoiled"),
            ("denied = spoiled or _DENIED_WHOLE", "denied = _DENIED_WHOLE"),
            ("if _same(choice, text) and not spoiled]", "if _same(choice, text)]"),
            ("return None if letter and letter != by_text and", "return None if False and"),
            ("same[0] if len(same) == 1 else", "same[0] if same else"),
            ("re.IGNORECASE | re.ASCII", "re.IGNORECASE"),
            ("or _other_letters(before, letter[1])", ""),
            ("return not _ASKS_AFTER.search(after)", "return True"),
            ("_SPOILED.match(text, letter + 1) is not None or", ""),
            ("if _BRACKETS.fullmatch(choice) and not", "if False and not"),
            ('.replace("\\u2212", "-").lower()', ".lower()"),
            ('.replace("\\u2212", "-").lower()', '.replace("\\u2212", "-").casefold()'),
            ("|\\.(?![0-9])|", "|\\.|"),
            ("(?![.,]?\\w)", "(?!\\w)"),
            ("return set(re.findall(beside, question)) == {letter}", "return letter in re.findall(beside, question)"),
            ("if len(choices) > len(ascii_uppercase):", "if len(choices) > 99:"),
            ("<= known\n", "!= known\n"),
            ("return Score(0.0, answer, why, unparsed=True)", "return Score(0.0, answer, why)"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/prose.py", old, new, "rewards/verifiers/test_claims.py")
        for old, new in [
            ("if not is_claim(before, after, question) or", "if"),
            ('if _GOES_ON.match(rest) or taken_back("", rest):', 'if taken_back("", rest):'),
            ('if _GOES_ON.match(rest) or taken_back("", rest):', "if _GOES_ON.match(rest):"),
            ("if _item(sentence, question) is not None and", "if False and"),
            ("if _SHORT.search(line) and", "if False and"),
            ("return alone and not step and", "return alone and"),
            ("-+*/\\u2013", "-+*/"),
            ("return numbers + [", "return numbers + 0 * ["),
            ('_AFTER = (_NEAR - {"remaining"}) |', "_AFTER = _NEAR |"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/claims.py", old, new, "rewards/verifiers/test_claims.py")
        for old, new in [
            (" or _OTHER_LANGUAGES.search(near)", ""),
            ("if any(not re.search(rf", "if any(True or re.search(rf"),
            ("before.split()[-4:]", "before.split()[-1:]"),
            ("if question.isascii() and any(", "if any("),
            ("if question.isascii() and any(", "if False and any("),
            ("if any(match[1].casefold() not in _NAMED and", "if any(False and"),
            ("if words and words != ", "if False and words != "),
            ("if place and not _fits(", "if False and not _fits("),
            ("if len(words) <= 3 and not all(", "if False and not all("),
            ("if subject and not any(", "if False and not any("),
            (' or word.endswith("ing")', ""),
            ("if joined and joined[1]", "if False and joined[1]"),
            (' | {"in", "per", "ignoring"}', ""),
            ("return (said := _IS.match(after)) is None or", "return True or (said := _IS.match(after)) is None or"),
            ('(verb == "was" and "answer" in words)', "False"),
            ("    return all(word in _PREDICATE or _known(word, known)", "    return all(word in _PREDICATE"),
            ('if re.search(r"[0-9][^()]*\\([^()]*$", before):', "if False:"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/surroundings.py", old, new, "rewards/verifiers/test_surroundings.py")
        for old, new in [
            ("(words and _DENIES.fullmatch(words[-1])) or", ""),
            (" or _CONDITION.search(before)", ""),
            ("while words and (not words[-1] or words[-1] in _ANNOUNCE):", "while False:"),
            ('if answer_in == "boxed" and (_PART_BEFORE.search(before) or', 'if answer_in == "boxed" and ('),
            ("or _PART_AFTER.match(after))", ")"),
            ("hidden = hidden or before.count(_HIDES[-1][0]) % 2 == 1", "pass"),
            (' or "<think>" in after', ""),
            (' or "<answer>" in after', ""),
            ("return hidden or goes_on or", "return goes_on or"),
            ("return hidden or goes_on or", "return hidden or"),
            ("or _RETRACTS.search(after) is not None", ""),
            ("_NEXT_TASK.split(after, maxsplit=1)[0]", "after"),
            ('before.rpartition("\\n")[2], answer_in)', "before, answer_in)"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/numbers.py", old, new, "rewards/verifiers/test_surroundings.py")
        for old, new in [
            ("if taken_back(before, after, self.answer_in) or", "if"),
            (" or any(other != number for other in others)", ""),
            ("for number in (alone, *declared(after))", "for number in declared(after)"),
            ("for number in (alone, *declared(after))", "for number in (alone,)"),
            (" + ([parse_number(earlier, question)] if earlier else [])", ""),
        ]
    ),
    *(
        Mutation("rewards/verifiers/choice.py", old, new, "rewards/verifiers/test_surroundings.py")
        for old, new in [
            ("taken_back(before, after, self.answer_in) or", ""),
            (" or set(others) - {letter}", ""),
            (", *([read_letter(earlier, choices)] if earlier else [])", ""),
        ]
    ),
]
