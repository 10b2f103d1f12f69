"""Faults of the rewards: a bound, a sign, a denominator, a failure scored 0, an answer that is run or misread."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("rewards/reward.py", old, new, "rewards/test_reward.py")
        for old, new in [
            ("or not math.isfinite(number)", "or math.isnan(number)"),
            ("or not math.isfinite(number)", "or math.isinf(number)"),
            ("if not isinstance(number, int | float) or", "if"),
            ("if len(values) != len(episodes):", "if len(values) < len(episodes):"),
            ("if len(values) != len(episodes):", "if len(values) > len(episodes):"),
            ("if not isinstance(value, Score):", "if value is None:"),
            ("if not isinstance(returned, list | tuple):", "if returned is None:"),
            ("[episode for _, episode in running] or episodes", "episodes"),
            ("[episode for _, episode in running] or episodes", "[episode for _, episode in running]"),
            ("running.remove(entry)", "pass"),
            ("running.append(entry)", "running.insert(0, (0, episode)); running.append(entry)"),
            (
                "raise\n    except Exception as error:\n        raise RewardError(f\"reward '{reward.name}'",
                "raise KeyError\n    except Exception as error:\n        raise RewardError(f\"reward '{reward.name}'",
            ),
            ("names[:3]", "names[:2]"),
            ("len(names) - 3} more", "len(names)} more"),
            ("_tasks([episode])}; expected a finite number", "_tasks(episodes)}; expected a finite number"),
        ]
    ),
    *(
        Mutation("rewards/check.py", old, new, "rewards/test_check.py")
        for old, new in [
            ("if empty != [] else []", "if False else []"),
            ("bounds[0] <= score.total <= bounds[1]", "score.total <= bounds[1]"),
            ("bounds[0] <= score.total <= bounds[1]", "bounds[0] <= score.total"),
            ("if score.unparsed and score.total > 0:", "if score.unparsed and score.total > 1:"),
            ('"alone": alone[i]}', "}"),
            ("if deterministic else {}", ""),
            ("!= before:", "is before:"),
            ('if not episodes:\n        return ["no task', 'if False:\n        return ["no task'),
            ("if score.total != 1.0", "if score.unparsed"),
            ("if task.gold is not None", "if True"),
        ]
    ),
    *(
        Mutation("rewards/combine.py", old, new, "rewards/test_combine.py")
        for old, new in [
            ("found is not None and (", "(found is not None or "),
            ("weight * score.total", "weight + score.total"),
            ("weight * score.total", "score.total"),
            ("score.total for", "abs(score.value) for"),
            ("if names.count(name) > 1", "if names.count(name) > 2"),
            ('("mean", "std", "length_correlation")', '("mean",)'),
            ("if not math.isfinite(weight):", "if math.isnan(weight):"),
            ("if not self.timeout_s > 0:", "if self.timeout_s <= 0:"),
            ("else self.timeout_s)", "else 60)"),
            ("return verifiers[0] if verifiers", "return verifiers[-1] if verifiers"),
            ("zip(names, row, strict=True)", "zip(reversed(names), row, strict=True)"),
        ]
    ),
    *(Mutation("rewards/custom.py", old, new, "rewards/test_combine.py") for old, new in []),
    *(
        Mutation("rewards/custom.py", old, new, "rewards/test_custom.py rewards/test_trl.py")
        for old, new in [
            ("or (score.applicable and not math.isfinite(score.total))", ""),
            ("Score.not_applicable() if value is None else", ""),
            ("if p.name in _TRAINER and p.default is p.empty", "if False"),
            ("if len(values) != len(episodes):", "if len(values) > len(episodes):"),
            ("await in_thread(one_at_a_time, **arguments)", "self.function(**arguments)"),
            ("            with self.alone:  # groups may", "            if self.alone:  # groups may"),
            ("bool(single) == bool(batch)", "not names"),
            ("if nameless or", "if"),
            ("if p.default is p.empty)", "if True)"),
            ('hasattr(value, "__float__")', "isinstance(value, float)"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/extraction.py", old, new, "rewards/verifiers/test_extraction.py")
        for old, new in [
            ('completion.rpartition("</think>")\n        return', 'completion.partition("</think>")\n        return'),
            ("if closed else None", "if True else None"),
            ('text.rfind("</answer>")', 'text.find("</answer>")'),
            ('text.rfind("<answer>", 0, end)', 'text.find("<answer>", 0, end)'),
            ('text.rfind("<answer>", 0, end)', 'text.rfind("<answer>")'),
            ('outside.rpartition("####")', 'outside.partition("####")'),
            ('.split("\\n", 1)[0] if hashes', " if hashes"),
            ("            last = match.start()\n", "            last = match.start() if last < 0 else last\n"),
            ('match["brace"] == "{"', 'match["brace"] == "x"'),
            ("min(span for", "max(span for"),
            ("all(start != last for start, _ in closed)", "not closed"),
            (r"(?:boxed|fbox)\{)|\\.|", r"(?:boxed|fbox)\{)|"),
            ("outside = outside_reasoning(completion)", "outside = completion"),
            ('return rest.partition("<think>")[0]', "return rest"),
            ('rest = completion.rpartition("</think>")[2]', "rest = completion"),
            ("(found.strip() or None)", "found.strip()"),
            ("thought = before if closed else completion", "thought = completion"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/numbers.py", old, new, "rewards/verifiers/test_numbers.py")
        for old, new in [
            ("last_number: bool = False", "last_number: bool = True"),
            ("return given.value == right.value", "return abs(given.value - right.value) < 1"),
            ("return given.value == right.value", "return float(given.value) == float(right.value)"),
            ("if percent == plain and 0 < abs(plain) < 1:", "if False:"),
            ("return plain in (percent, percent / 100)", "return plain == percent"),
            ("return plain in (percent, percent / 100)", "return plain == percent / 100"),
            (
                "final_number(outside_reasoning(episode.completion), question)",
                "final_number(episode.completion, question)",
            ),
            ('.rpartition("####")[2]', ""),
        ]
    ),
    *(
        Mutation("rewards/verifiers/number_grammar.py", old, new, "rewards/verifiers/test_numbers.py")
        for old, new in [
            ("if match is None or not is_unit(", "if match is None or False and not is_unit("),
            ("Number(-number.value, number.percent) if negated", "number if negated"),
            ('.replace("\\u2212", "-")', ""),
            ('.replace("{,}", ",")', ""),
            ("> MAX_EXPONENT", "> 10 * MAX_EXPONENT * 100"),
            (" or _TWO_NUMBERS.search(plain)", ""),
            ("(?:\\s{2,}|", "(?:"),
            ("sign = -1 if", "sign = 1 if"),
            ("all(equals(side, number.value) for side in sides)", "any(equals(side, number.value) for side in sides)"),
            ("if below == 0 or (whole and above >= below):", "if below == 0:"),
            ("+ sum(whole)", ""),
            ("[1-9][0-9]{{0,2}}(?:{mark}", "[0-9]{{1,3}}(?:{mark}"),
            ("or other_scale([currency], question):", ":"),
            ("if is_millions(text[match.end() :], currency) or", "if"),
            ("if not is_other_word(name.casefold())", ""),
            ('return text if lead[0][-1:].isalpha() and rest.startswith("-") else', "return"),
            ("subject.casefold() not in _SUBJECTS and", "False and"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/units.py", old, new, "rewards/verifiers/test_numbers.py")
        for old, new in [
            ("if (raw[-1] in ascii_letters and", "if (False and"),
            ("|_(?![a-zA-Z]))", "|_)"),
            ("    if is_other_word(word):\n", "    if False:\n"),
            ("    others = CHANGES | OTHER_WORDS | _ORDINALS", "    others = CHANGES | _ORDINALS"),
            ("    others = CHANGES | OTHER_WORDS | _ORDINALS", "    others = CHANGES | OTHER_WORDS"),
            ("or number in CHANGES or", "or"),
            ("or leading_cardinal(number) is not None", ""),
            (' or words[-1] in ("per", "an", "of", "every"):', ":"),
            ("return bool(words) and words[0] in _MEASURES", "return False"),
            ('return words[:1] in (["m"], ["mm"]) and', "return False and"),
            (' - {"pound", "pounds"}', ""),
            ("(word.isalpha() and stem(word) in known)", "word.isalpha()"),
            ("or CAPITALS & set(raw):", ":"),
            ("and not other_scale(words, question)", ""),
            ("word in unit and unit not in named", "word in unit"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/prose.py", old, new, "rewards/verifiers/test_numbers.py")
        for old, new in [
            ("_NO_EQUATION.search(before) or ", ""),
            ('_SIGN_APART.search(before.rstrip(" ")) or ', ""),
            (" or MILLIONS.match(after)", ""),
            ("set(follow[:1]) & _AFTER", "set()"),
            ('number is None or _TURNS.search(sentence + " " + rest)', "number is None or _TURNS.search(sentence)"),
            ('number is None or _TURNS.search(sentence + " " + rest)', "number is None or _TURNS.search(rest)"),
            ("or _numbers_in_words(rest)", ""),
            ("plain is None or _NOT_MEANT.search(plain)", "plain is None"),
            ("if any(said not in (None, number) for said in declared(before + sentence)):", "if False:"),
            ("    return alone and not step and", "    return False and"),
            ("if number is None or not _sides_hold(before, number):", "if number is None:"),
            ('if re.search(r"[,;] *[a-z] *=", between):', "if False:"),
            ('_JOINS.sub(" ", between)', "between"),
            ("not in _LABELS and", "!= 0 and"),
            ("Number(-number.value, number.percent) if negated", "number if negated"),
            ("if bare != before and bare[-1:].isalnum():", "if False:"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/cardinals.py", old, new, "rewards/verifiers/test_numbers.py")
        for old, new in [
            ("if number < 10**9 and _said(number) == words else None", "if number < 10**9 else None"),
            ("group *= 100", "group += 100"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/exact.py", old, new, "rewards/verifiers/test_exact.py")
        for old, new in [
            ("if self.ignore_case", "if not self.ignore_case"),
            ('" ".join(normalize("NFC", text.strip().strip(INVISIBLE)).split())', "text"),
            ('normalize("NFC", text.strip().strip(INVISIBLE))', "text.strip().strip(INVISIBLE)"),
            (".strip(INVISIBLE)", ""),
            ("not_found(self.answer_in), unparsed=True", "not_found(self.answer_in), unparsed=False"),
            ("if a is not None and", "if"),
            (" and not (isinstance(a, float) and isnan(a))", ""),
            ("for a in present) if text]", "for a in present)]"),
            ("if unlike := [a", "if unlike := [a for a in []] or False and [a"),
            ("(answer) in expected", "(answer) == expected[0]"),
            ("text.casefold()", "text.lower()"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/worker.py", old, new, "rewards/verifiers/test_worker.py")
        for old, new in [
            ("Timer(timeout_s, expire)", "Timer(timeout_s + 9, expire)"),
            ("os.dup2(2, 1)", "pass"),
            ("    _limit_memory()\n", ""),
            ("if expired.is_set():", "if True:"),
            ("            expired.set()\n", ""),
            (
                "with self._lock:\n            if self._process is None or",
                "if True:\n            if self._process is None or",
            ),
            ('reply({"error": f"{type(error).__name__}: {error}"[:500]})', 'reply({"answer": 0})'),
        ]
    ),
    *(
        Mutation("rewards/verifiers/pool.py", old, new, "rewards/verifiers/test_pool.py")
        for old, new in [
            ("@cache\n", ""),
            ("self._places = threading.Semaphore(size)", "self._places = threading.Semaphore(size + 9)"),
            ("                TIME_LIMITS.add(digest)\n", ""),
            ("if digest in TIME_LIMITS:", "if False:"),
            ("question, timeout_s)).encode()", "timeout_s)).encode()"),
            ('"\\n" * _is_torn(self._path) + ', ""),
            ("raise errors[min(errors)]", "raise errors[max(errors)]"),
            ("if digest in self._digests:\n                return", "if False:\n                return"),
            ("for number in range(len(questions))]", "for number in answers]"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/math.py", old, new, "rewards/verifiers/test_math.py")
        for old, new in [
            ('if verdict == "equal":', 'if verdict != "different":'),
            ("return Score(0.0, answer, verdict, unparsed=True)", "return Score(0.0, answer, verdict)"),
            ('after {self.timeout_s:g} s", unparsed=True)', 'after {self.timeout_s:g} s")'),
            ("verify(*pair,", "verify(pair[1], pair[1],"),
            ("product(map(_rational, _gold(gold)), map(_rational, read))", "product(_gold(gold), read)"),
            ("if exact := _as_numbers(answer, golds, question):", "if exact := None:"),
            ("if large := too_large(answer):", "if large := None:"),
            ("doubt = unexplained(answer, gold, asked)", "doubt = None"),
            ("return final_formula(plain, question)", "return plain"),
            ("parse_number(_decimal_comma(answer), ", "parse_number(answer, "),
            ('" ".join([question, *golds])', "question"),
            ('text = text.replace(r"\\$", "")', "pass"),
            ("if _is_formula(text) else text", "if True else text"),
            ("if _is_formula(text) else text", "if False else text"),
            ("|begin|end)", ")"),
            ("        for gold in golds:\n            _gold(gold)\n        return", "        return"),
            ("if not golds:\n            raise", "if False:\n            raise"),
            ("timeout_s: float = 5.0", "timeout_s: float = 0.0001"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/formula.py", old, new, "rewards/verifiers/test_math.py")
        for old, new in [
            ("if len(text) > MAX_CHARACTERS:", "if False:"),
            ("if _depth(text) > MAX_DEPTH:", "if False:"),
            ("if _TOWER.search(text):", "if False:"),
            ("if any(int(n) > MAX_EXPONENT", "if any(int(n) < 0"),
            ("if _FACTORIAL.search(text):", "if False:"),
            ("if _BINOMIAL.search(text):", "if False:"),
            ('_FACTORIAL = re.compile(r"(?:[0-9]{4,}|', '_FACTORIAL = re.compile(r"(?:[0-9]{1,}|'),
            ("MAX_EXPONENT = 9999", "MAX_EXPONENT = 99"),
            ("_surplus(_relations(told), _relations(gold))", "_surplus([], [])"),
            ('LABEL.sub("", part)', "part"),
            ("if letter := _surplus_letter(", "if letter := False and _surplus_letter("),
            ('    if not _LETTER.search(_COMMAND.sub(" ", gold)):', "    if True:"),
            ("if len(word) == 1 and word not in ONE_LETTER", "if False"),
            ("|//|", "|"),
            ("if word in CAPITALS or not", "if not"),
            ("if sign := _stray(answer, gold) or", "if sign :="),
            ("if _answers(answer) > max(", "if _answers(answer) > 9 + max("),
            ("and _brackets(answer) != _brackets(gold):", "and False:"),
            ("character not in _SIGNS and", "False and"),
            ("for power in _SUPERSCRIPT.finditer(answer):", "for power in ():"),
            ("if other_scale(unit,", "if False and other_scale(unit,"),
            ("* 2**signs", ""),
            ('if "$" in answer or', "if"),
            ("if command not in _KNOWN_COMMANDS and", "if False and"),
            ('if re.search(r"[0-9]\\s*_", answer)', "if False"),
            ("for match in _STRAY.finditer(answer):", "for match in ():"),
        ]
    ),
    *(
        Mutation(
            "rewards/verifiers/gym_forms.py",
            *(old, new, "rewards/verifiers/test_gym.py rewards/verifiers/test_gym_forms.py"),
        )
        for old, new in [
            (
                "re.fullmatch(_FORMS[family], text, re.ASCII) is not None",
                "re.search(_FORMS[family], text, re.ASCII) is not None",
            ),
            ('_plain(text) == _plain(str(entry["answer"]))', "True"),
            ("if family in _CHECKS:", "if False:"),
            ('("".join(line.split()) for line in', "(line for line in"),
            ('re.sub(r",\\s+", ",", text).splitlines()', "text.splitlines()"),
            ('"\\n".join(filter(None, lines)).casefold()', '"\\n".join(filter(None, lines))'),
            ('"\\n".join(filter(None, lines))', '"".join(lines)'),
            ('"\\n".join(filter(None, lines))', '"\\n".join(lines)'),
            ("<= min(Fraction(1, 10_000), right / 200)", "<= 1"),
            ("for number in said] == right", "for number in said] != []"),
            ("_decimal(str(number).strip())", "Decimal(float(number))"),
            ("said in (right, right.removesuffix", "said[:3] in (right[:3], right.removesuffix"),
            ("(?<![\\d.])0+(?=\\d)", "0+(?=\\d)"),
            ("used == sorted(map(int, numbers)) and", ""),
            ('"." not in text and', ""),
            ("and arithmetic(text) == target", ""),
            ("_POLYNOMIAL.fullmatch(text) is not None and", ""),
            (" and sorted(said) == sorted(right)", ""),
            ("if match is None or (match[1] and match[3]):", "if match is None:"),
            ('<= {entry["metadata"]["variable"], "E"}', "<= set(text)"),
            ("if len(answer) > longest:", "if False:"),
            ("400 + 4 * len(str(right))", "400"),
            ("    if _EXPONENT.search(answer) and not", "    if False and not"),
            ("and not _EXPONENT.search(str(right))", ""),
            ("(?<![\\w.])[\\d.]+e", "[\\d.]+e"),
            ('if family in ("rubiks_cube", "rush_hour")', 'if family in ("rubiks_cube",)'),
            ("if family in _ALGEBRA and", "if False and"),
            ('if family in ("countdown", "puzzle24") and', "if False and"),
            ('r"(?i:-?0x[0-9a-f]+)"', 'r".*"'),
            ('"prime_factorization": r"\\d+(?:\\s*×\\s*\\d+)*"', '"prime_factorization": r".*"'),
            ("abs(right) / 10**10", "1"),
            ('"power_function": _SCIENTIFIC', '"power_function": ".*"'),
            ("None not in said and", ""),
            ("len(said) == len(right.split(", "len(said) >= len(right.split("),
            ('Decimal("0.0051")', "1"),
            ("_decimal(text) == Decimal(str(entry", "abs(_decimal(text)) == Decimal(str(entry"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/gym_structures.py", old, new, "rewards/verifiers/test_gym_structures.py")
        for old, new in [
            ("if len(dict(pairs)) != len(pairs):", "if False:"),
            ("one.keys() == other.keys() and", ""),
            ("len(ones) == len(others) and", ""),
            (" and isinstance(said, bool) == isinstance(right, bool)", ""),
            ("sorted(map(sorted, said)) ==", "said !="),
            ("sorted(said) == sorted(", "set(map(tuple, said)) == set(tuple(part) for part in "),
            ("isinstance(value, list) and all(", "all("),
            ("sorted(key for key, _ in pairs) == vertices", "pairs"),
            ("all(type(color) is int for _, color in pairs)", "pairs"),
            ("and len(letters) == len(set(letters))", ""),
            ("_MAPPING.fullmatch(text) is not None and", ""),
            ("_STATEMENTS.fullmatch(text) is not None and", ""),
            ("is not None and said == right", "is not None"),
            ("            if str(board) == before:", "            if False:"),
            ("return all(game", "return any(game"),
            ("re.ASCII) is None:", "re.ASCII) is None and False:"),
        ]
    ),
    *(
        Mutation(
            "rewards/verifiers/gym.py",
            *(old, new, "rewards/verifiers/test_gym.py rewards/verifiers/test_gym_forms.py"),
        )
        for old, new in [
            ("if not self.partial_credit:", "if self.partial_credit:"),
            ("if _NOT_FINITE.search(answer) and not", "if False and not"),
            ("_NOT_FINITE.search(answer) and not _NOT", "_NOT_FINITE.search(answer) or _NOT"),
            ("(?<![a-z])(?:nan|", "(?:nan|"),
            ("float(value == 1.0)", "float(value > 0)"),
            ('task.metadata.get("options")', "None"),
            ("original(plain_expression(text), *args, **kwargs)", "original(text, *args, **kwargs)"),
            ("if value.has(*infinite):", "if False:"),
            ("misread(name, answer, entry) if value >= 1.0 else None", "None"),
            ('vars(module)["eval"] = literal', "pass"),
            ("Score(0.0, answer, raw, unparsed=True)", "Score(0.0, answer, raw)"),
            ('s", unparsed=True)', 's")'),
            ("if key not in task.metadata", "if False"),
            ("if family in REFUSED:", "if False:"),
            ("    import sympy.physics.units", "    import sympy  "),
        ]
    ),
    *(
        Mutation("rewards/verifiers/arithmetic.py", old, new, "rewards/verifiers/test_gym.py")
        for old, new in [
            ("return -_value(operand)", "return _value(operand)"),
            ("_value(left) / _value(right)", "_value(left) // _value(right)"),
            ("or not _ARITHMETIC.fullmatch(text)", "or not _ARITHMETIC.match(text)"),
        ]
    ),
    *(
        Mutation(
            "rewards/verifiers/gym_notation.py",
            *(old, new, "rewards/verifiers/test_gym.py rewards/verifiers/test_gym_forms.py"),
        )
        for old, new in [
            ("given is not None and given == gold", "given is not None"),
            ("return answer if quotient and", "return answer if False and"),
            ("and given.value.denominator == 1", ""),
            ("if family in WORDS and", "if False and"),
            (' and ".." not in answer', ""),
            ("if family in NUMBERS:", "if False:"),
            ('parse_number(answer, str(entry.get("question")))', "parse_number(answer)"),
        ]
    ),
    *(
        Mutation("rewards/verifiers/untrusted.py", old, new, "rewards/verifiers/test_untrusted.py")
        for old, new in [
            (" and node.func.id in _ELEMENTARY", ""),
            ('if "#" in text:', "if False:"),
            ("if any(map(_is_large, powers)) or", "if"),
            (" or sum(map(_exponent, powers)) > MAX_EXPONENT", ""),
            ("sum(abs(number) for", "sum(number for"),
            ("abs(value) <= MAX_EXPONENT", "value <= MAX_EXPONENT"),
            ("    return numeric and any(isinstance(node, ast.Pow | ast.LShift) for node in base)", "    return False"),
            ("if numeric and any(isinstance(node, grows)", "if any(isinstance(node, grows)"),
            ("plain = isinstance(node.value, int | float)", "plain = True"),
            ("plain = isinstance(node, _PLAIN_NODES)", "plain = True"),
            ("plain = variable or", "plain = True or"),
            ("if not all(isinstance(operand, int | float) for operand in operands) or", "if"),
            ('ast.Sub: "sub"', 'ast.Sub: "add"'),
            ('ast.FloorDiv: "floordiv"', 'ast.FloorDiv: "truediv"'),
            ('ast.RShift: "rshift"', 'ast.RShift: "lshift"'),
            ("if isinstance(node, ast.List) else tuple(values)", ""),
        ]
    ),
    *(
        Mutation("rewards/rules/tags.py", old, new, "rewards/rules/test_tags.py")
        for old, new in [
            ("!= 1:", "< 1:"),
            ("!= 1:", "> 1:"),
            (".match(text, position)", ".search(text, position)"),
            ("if not text[opening.end() : end].strip():", "if False:"),
            ('position = end + len(f"</{tag}>")', "position = end"),
            ("if self.text_after and not rest:", "if not rest:"),
            ("if self.text_after and not rest:", "if False:"),
            ("if not self.text_after and rest:", "if False:"),
            ("if self.opened_by_prompt and self.tags", "if False"),
            ("float(not flaw)", "float(not flaw) + 0.5"),
        ]
    ),
    *(
        Mutation("rewards/rules/language.py", old, new, "rewards/rules/test_language.py")
        for old, new in [
            ("counts[expected] / counts.total()", "1 - counts[expected] / counts.total()"),
            ("counts.total()", "len(episode.completion)"),
            ("if character.isalpha()", "if not character.isspace()"),
            ("return Score(1.0, explanation=", "return Score(0.0, explanation="),
            ('"KATAKANA": "han"', '"KATAKANA": "kana"'),
            ('"HIRAGANA": "han"', '"HIRAGANA": "kana"'),
            ("episode.task.prompt)", "episode.messages)"),
        ]
    ),
    *(
        Mutation("rewards/rules/length.py", old, new, "rewards/rules/test_length.py")
        for old, new in [
            ("self.limit - self.buffer", "self.limit"),
            ("over / self.buffer", "over / self.limit"),
            ("-min(max(over", "min(max(over"),
            ("max(over / self.buffer, 0.0)", "over / self.buffer"),
            ("min(max(over / self.buffer, 0.0), 1.0)", "max(over / self.buffer, 0.0)"),
            ("abs(length - self.target)", "(length - self.target)"),
            ("abs(length - self.target) / self.target", "abs(length - self.target) / max(length, 1)"),
            ("if not 0 < self.buffer <= self.limit:", "if not 0 < self.buffer:"),
            ("if not 0 < self.buffer <= self.limit:", "if not self.buffer <= self.limit:"),
            ("if self.target <= 0:", "if self.target < 0:"),
        ]
    ),
    *(
        Mutation("rewards/rules/repetition.py", old, new, "rewards/rules/test_repetition.py")
        for old, new in [
            ("Score(-share", "Score(share"),
            ("len(words) - n + 1", "len(words) - n"),
            ("len(words) - n + 1", "len(words)"),
            ("words[i : i + n]", "words[i : i + 1]"),
            ("len(set(ngrams)) / len(ngrams)", "len(set(ngrams)) / len(words)"),
            ("text.lower()", "text"),
            ("if self.n < 1:", "if self.n < 0:"),
        ]
    ),
    *(
        Mutation("rewards/rules/steps.py", old, new, "rewards/rules/test_steps.py")
        for old, new in [
            ("max(len(steps), self.min_steps)", "len(steps)"),
            ("max(len(steps), self.min_steps)", "max(distinct, self.min_steps)"),
            ("distinct = len(set(steps))", "distinct = len(steps)"),
            ("steps_of(reasoning(episode.completion))", "steps_of(episode.completion)"),
            ('_BULLET.sub("", text)', "text"),
            ('_NUMBERING.sub("", part)', "part"),
            (").lower() for", ") for"),
            ("if step]", "]"),
            ("(?<=[.!?])\\s", "[.!?]"),
            (",\\s", ","),
            ("if self.min_steps < 1:", "if self.min_steps < 0:"),
        ]
    ),
    *(
        Mutation("rewards/rules/verification.py", old, new, "rewards/rules/test_verification.py")
        for old, new in [
            ("min(found, self.cap) / self.cap", "found / self.cap"),
            ("min(found, self.cap) / self.cap", "min(found, self.cap)"),
            ('len(rests - {""})', "len(rests)"),
            ('pattern.sub(" ", step)', "step"),
            ("steps_of(reasoning(episode.completion))", "steps_of(episode.completion)"),
            ("if pattern.search(step)", "if True"),
            ("(?<!\\w)(?:", "(?:"),
            ("(?!\\w)", ""),
            ("map(re.escape, longest_first)", "longest_first"),
            (", re.IGNORECASE", ""),
            ("if self.cap < 1", "if self.cap < 0"),
        ]
    ),
    *(
        Mutation("rewards/combine.py", old, new, "rewards/test_trl.py")
        for old, new in [
            ("if score.applicable]", "]"),
            ("self.weights.items() if weight]", "self.weights.items()]"),
            ("if found or not scores else math.nan", "if True else math.nan"),
            ("if found or not scores else math.nan", "if found else math.nan"),
        ]
    ),
]
