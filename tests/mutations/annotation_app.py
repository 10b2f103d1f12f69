"""Faults of the annotation app: who may do what, what is kept, what is shown, and what is learned from it."""

from tests.mutations import Mutation

MANAGING = "annotation/app/test_admin.py"
WORK = "annotation/store/test_work.py"
PEOPLE = "annotation/store/test_people.py"
PROJECTS = "annotation/store/test_projects.py"
KINDS = "annotation/test_task_kinds.py"
LESSONS = "annotation/test_training_rows.py"
ENTRANCE = "annotation/app/test_security.py annotation/app/test_admin.py"
TALKING = "annotation/store/test_conversations.py"
PAGES = "annotation/app/test_conversations.py"
SECURITY = "annotation/app/test_security.py annotation/app/test_tasks.py"

MUTATIONS = [
    *(
        Mutation("annotation/store/exports.py", old, new, WORK)
        for old, new in [
            ("if not one.repeat and one.item.expected is None]", "if not one.repeat]"),
            ("one.judgements[-1]) for one in first(", "one.judgements[-1]) for one in done("),
        ]
    ),
    *(
        Mutation("annotation/task_kinds.py", old, new, WORK)
        for old, new in [
            ('return one["better"] == other["better"]', "return True"),
            ('other["scores"][number][attribute]) <= 1', 'other["scores"][number][attribute]) <= 0'),
            ('other["scores"][number][attribute]) <= 1', 'other["scores"][number][attribute]) <= 2'),
        ]
    ),
    *(
        Mutation("annotation/store/database.py", old, new, "annotation/store/test_database.py")
        for old, new in [
            ("hide_password=True", "hide_password=False"),
            ('.difference_update_query(["password"])', ""),
            ("Store(name or url, engine", "Store(url, engine"),
        ]
    ),
    *(
        Mutation("annotation/app/auth.py", old, new, "annotation/app/test_security.py")
        for old, new in [
            ("            desk.failures.count(_address(request))\n            raise", "            raise"),
            ("    desk.failures.check(_address(request))\n    _invited(", "    _invited("),
        ]
    ),
    *(
        Mutation("annotation/store/work.py", old, new, WORK)
        for old, new in [
            ('Assignment.state == "open")\n    if (found', 'Assignment.state == "none")\n    if (found'),
            ("Item.given < project.annotators_per_item", "Item.given <= project.annotators_per_item"),
            ("Item.id.not_in(select(Assignment.item_id).where(Assignment.user_id == user.id))", "Item.id > 0"),
            ("_count(connection, *checks, unseen)", "_count(connection, *checks)"),
            ("random.random() * (known + others) < known", "random.random() * others < known"),
            ("_count(connection, *plain, unseen)", "_count(connection, *plain)"),
            ("known and (item or not _count(connection, *plain))", "known"),
            ("known and (item or not _count(connection, *plain))", "known and item"),
            ("Item.expected.is_(None))", "Item.id > 0)"),
            ("Item.priority.desc()", "Item.priority"),
            ("Item.given.desc(), func", "Item.given, func"),
            ("random.SystemRandom().shuffle(shown)", "pass"),
            ("        item.given += 1\n    connection.flush()", "        pass\n    connection.flush()"),
            (">= project.repeat_share * len(first)", "> project.repeat_share * len(first) + 1"),
            ("first[:-APART]", "first"),
            ("if one.item_id not in twice]", "]"),
            ("if found is None or found.user_id != user.id or", "if found is None or"),
            ("or connection.get(Member, (found.item.project_id, user.id)) is None", ""),
            ("if known.assignment_id != assignment.id:", "if False:"),
            ("if version != len(assignment.judgements):", "if False:"),
            ("version=version + 1, answer=said, seconds", "version=1, answer=said, seconds"),
            ("max(0.0, seconds)", "0.0"),
            ('    if assignment.state in ("skipped", "lapsed"):\n', "    if False:\n"),
            ('assignment.state = "done"', "pass"),
            ("    if not reason:\n", "    if False:\n"),
            ('    if assignment.state == "done":\n', "    if False:\n"),
            ("values(given=Item.given - 1)", "values(given=Item.given)"),
            ('if assignment.state == "open" and not', "if not"),
            ('record(connection, assignment.user_id, "judge"', 'record(connection, None, "judge"'),
        ]
    ),
    *(
        Mutation("annotation/store/people.py", old, new, PEOPLE)
        for old, new in [
            ("found.uses_left > 0 and found", "found"),
            ("and found.expires > now() else None\n\n\ndef sealed", "else None\n\n\ndef sealed"),
            ("    found.uses_left -= 1\n    record", "    record"),
            ('    record(connection, user.id, "join", user.name, project=project)\n', ""),
            ('        record(connection, user.id, "accept", user.name, role=role)\n', ""),
            ("max(found.role, user.role, key=ROLES.index)", "found.role"),
            ("    if not new and role == user.role:\n        return False\n", ""),
            ("        user.role = role\n", ""),
            ("found.role, name, kept)", "'manager', name, kept)"),
            ("if not _NAME.fullmatch(name):", "if False:"),
            ("if len(password) < SHORTEST:", "if len(password) < 1:"),
            ("func.lower(User.name) == name.lower()", "User.name == name"),
            ("_hashed(password, secrets.token_bytes(16))", "_hashed(password, bytes(16))"),
            ("right and not user.disabled else None", "right else None"),
            ("return user if user and right and", "return user if user and"),
            ("found.expires > now() and not found.user.disabled", "not found.user.disabled"),
            ("and not found.user.disabled", ""),
            ("Session.id == found.id).values(expires=now())", "Session.id == found.id).values(csrf='')"),
            ("digest=_digest(entry.cookie)", "digest=entry.cookie"),
            ("            digest=_digest(secret),", "            digest=secret,"),
            ("    found.uses_left -= 1\n    if role", "    if role"),
            ("user.disabled = disabled", "user.disabled = True"),
        ]
    ),
    *(
        Mutation("annotation/store/projects.py", old, new, PROJECTS)
        for old, new in [
            ("1 <= annotators_per_item <=", "0 <= annotators_per_item <="),
            ("0 <= repeat_share <= 0.5", "repeat_share <= 0.5"),
            ("if item.name not in there]", "]"),
            ("if not low <= len(item.completions) <= high:", "if not low <= len(item.completions):"),
            ("if not low <= len(item.completions) <= high:", "if not len(item.completions) <= high:"),
            ("expected = item.expected and kind.check(", "expected = item.expected and dict("),
            ('Assignment.state == "done", ~Assignment.repeat', '~Assignment.repeat'),
            ("done.c.times >= project", "done.c.times > project"),
            ("items * project.annotators_per_item,", "items,"),
            ("len(set(attributes)) < len(attributes)", "False"),
            ("for word in (item.name, *prompt, *completions)", "for word in (*prompt, *completions)"),
            ("for word in (item.name, *prompt, *completions)", "for word in (item.name, *completions)"),
            ("for word in (item.name, *prompt, *completions)", "for word in (item.name, *prompt)"),
            ("for word in (text, model))", "for word in (text,))"),
        ]
    ),
    Mutation("annotation/store/projects.py", ', ~Assignment.repeat)', ")", WORK),
    Mutation("annotation/store/projects.py", "Item.expected.is_(None))", "Item.id > 0)", WORK),
    Mutation("annotation/store/projects.py", "Item.expected.is_not(None))", "Item.id > 0)", WORK),
    Mutation("annotation/rankings.py", 'if row.fields.get("check") is True:', "if False:", "recipes/test_annotate.py"),
    *(
        Mutation("annotation/task_kinds.py", old, new, KINDS)
        for old, new in [
            ("if not all(map(_number, named)) or sorted(named)", "if sorted(named)"),
            ("isinstance(value, int) and not isinstance(value, bool)", "isinstance(value, int)"),
            ("_within(strength, 0, 0)", "strength == 0"),
            ("_within(strength, 1, STRONGEST)", "_within(strength, 0, STRONGEST)"),
            ("_number(better) and better in question.texts", "_number(better)"),
            ('((answer["better"],), tuple(', '(tuple(answer["of"][:1]), tuple('),
            ("if sorted([*good, *bad]) != sorted(question.texts):", "if False:"),
            ('for group in (answer["good"], answer["bad"])', 'for group in (answer["bad"], answer["good"])'),
            ("set(given) != set(map(str, question.texts))", "False"),
            ("set(scores) != set(question.attributes)", "False"),
            ("_within(score, 1, HIGHEST)", "_within(score, 0, HIGHEST)"),
            ("levels = sorted(set(means.values()), reverse=True)", "levels = sorted(set(means.values()))"),
            ("len(steps_of(text)) - 1)", "len(steps_of(text)))"),
            ("not text.strip():", "not text:"),
            ("if len(text) > LONGEST:", "if False:"),
            ("if line.strip()]", "]"),
        ]
    ),
    *(
        Mutation("annotation/training_rows.py", old, new, LESSONS)
        for old, new in [
            ("(1 if vote.first == chosen else -1)", "1"),
            ("/ STRONGEST for item", "for item"),
            ("sum(signed) / len(signed)", "sum(signed)"),
            ("_two(told, one, chosen, rejected)", "_two(told, one, rejected, chosen)"),
            ('"chosen": models[chosen]', '"chosen": models[rejected]'),
            ('"rejected": models[rejected]}', '"rejected": models[chosen]}'),
            ('"item": one.item, "method": way}', '"item": one.item, "method": "majority"}'),
            ('"model": told.models[str(one.item)][number]}', '"model": ""}'),
            ('yield row | {"model": told.models[item][number]}', "yield row"),
            ("for number in answer[\"bad\"]})", "for number in answer[\"good\"]})"),
            ("            if balance:\n", "            if True:\n"),
            ('"label": balance > 0', '"label": balance < 0'),
            ("() if len(one.order) == 1 else", "() if False else"),
            ("number not in one.failed}", "True}"),
            ("if others and others[0][1] == most:", "if False:"),
            ("every[: wrong + 1]", "every[:wrong]"),
            ("[place != wrong for", "[place == wrong for"),
        ]
    ),
    *(
        Mutation("annotation/app/security.py", old, new, "annotation/app/test_security.py")
        for old, new in [
            ("if read > LARGEST:", "if False:"),
            ("if not length.isdigit() or len(length) > 18 or int(length) > LARGEST:", "if False:"),
            ("not in (\"same-origin\", \"none\"):", "not in (\"same-origin\", \"none\", \"same-site\"):"),
            ("if origin not in (None, url) and urlsplit", "if False and urlsplit"),
            ("if not hmac.compare_digest(expected.encode(), sent.encode()):", "if not sent:"),
            ("seen[0] <= now - self.seconds", "seen[0] < now - self.seconds"),
            ("return len(seen) >= self.most", "return len(seen) > self.most"),
            ("if len(self._seen) >= SWEPT:", "if False:"),
            ("if seen[-1] <= now - self.seconds]:", "]:"),
            ("script-src 'self'; style", "script-src 'self' 'unsafe-inline'; style"),
        ]
    ),
    *(
        Mutation("annotation/app/markdown.py", old, new, "annotation/app/test_markdown.py")
        for old, new in [
            ('tags=_TAGS', 'tags=_TAGS | {"script", "img"}, clean_content_tags=set()') ,
            ('link_rel="noopener noreferrer nofollow"', "link_rel=None"),
            ('"*": set(), ', ""),
        ]
    ),
    *(
        Mutation("annotation/app/session.py", old, new, SECURITY)
        for old, new in [
            ('if visitor.user.role != "manager":', "if False:"),
            ("    from_here(request, desk_of(request).url)\n", ""),
            ('same_token(visitor.csrf, form.get("csrf", ""))', "pass"),
            ("desk.writes.count(str(visitor.user.id))", "pass"),
            ("    desk.writes.check(str(visitor.user.id))\n", ""),
        ]
    ),
    *(
        Mutation("annotation/app/auth.py", old, new, ENTRANCE)
        for old, new in [
            ("httponly=True", "httponly=False"),
            ('samesite="lax"', 'samesite="none"'),
            ("secure=desk.https", "secure=False"),
            ("        desk.failures.count(_address(request))\n        return desk.page", "        return desk.page"),
            ("        desk.failures.count(_address(request))\n        raise LookupError", "        raise LookupError"),
        ]
    ),
    *(
        Mutation("annotation/store/work.py", old, new, TALKING)
        for old, new in [
            ("(finish if KINDS[project.kind].goes_on is None else take_up)", "finish"),
            ("(finish if KINDS[project.kind].goes_on is None else take_up)", "(lambda a: None)"),
            ("            assignment.item.given = Item.given + 1  #", "            pass  #"),
            ("texts=texts, before=chosen[:-1])", "texts=texts)"),
            ("if number < 2 * len(chosen)}", "}"),
            ("select(Judgement.assignment_id).where(Judgement.said >= before)", "select(-1)"),
            ("select(Turn.assignment_id).where(Turn.said >= before)", "select(-1)"),
            ('| Assignment.judgements.any()', ""),
            ('        assignment.state = "open"\n', ""),
            ("[: max(0, len(assignment.turns) - 1)]", ""),
            ("enumerate(turn.replies or ())", "enumerate(turn.replies or [{'text': ''}] * 2)"),
        ]
    ),
    *(
        Mutation("annotation/store/conversations.py", old, new, TALKING)
        for old, new in [
            ("    if KINDS[project.kind].goes_on is None:\n", "    if False:\n"),
            ("if known.assignment_id != assignment.id:", "if False:"),
            ("        return known\n", "        pass\n"),
            ("    storable(message)\n", ""),
            ("if not message or len(message) > LONGEST:", "if len(message) > LONGEST:"),
            ("if not message or len(message) > LONGEST:", "if not message:"),
            ('    if assignment.state == "done":\n', "    if False:\n"),
            ("if len(turns) >= MOST:", "if len(turns) > MOST:"),
            ("if turn != len(turns) or len(chosen)", "if len(chosen)"),
            ("or len(chosen) < len(turns):", "and False:"),
            ("    take_up(assignment)\n", ""),
            ("following(project, turns[-1], chosen[-1])", "following(project, turns[-1], chosen[0])"),
            ("    random.SystemRandom().shuffle(shown)\n", ""),
            ("turn.shown[0] if taken is None", "turn.shown[1] if taken is None"),
            ("[dict(message) for message in turn.assignment.item.prompt]", "[]"),
            ("reply_of(before, before.taken)", "reply_of(before, before.shown[0])"),
            ("[: turn.number]", ""),
            ("number - 2 * turn.number]", "number % 1]"),
            ('Turn.replies.is_(None), Assignment.state != "done"', "Turn.replies.is_(None)"),
            ('Turn.replies.is_(None), Assignment.state', "Assignment.state"),
            ("    if turn.replies is None:\n", "    if True:\n"),
            ("    if not chosen or (", "    if ("),
            ("and assignment.turns[-1].replies is not None)", "and False)"),
            ("        finish(assignment)\n", ""),
            ('    if assignment.state != "done":\n', "    if True:\n"),
        ]
    ),
    *(
        Mutation("annotation/store/projects.py", old, new, TALKING)
        for old, new in [
            ('if (kind == "red-team") != bool(rules):', "if False:"),
            ("if KINDS[kind].goes_on and repeat_share:", "if False:"),
            ("for rule in rules if rule.strip()]", "for rule in rules]"),
        ]
    ),
    *(
        Mutation("annotation/training_rows.py", old, new, TALKING)
        for old, new in [
            ('one.choice["strength"] / STRONGEST', 'one.choice["strength"]'),
            ("        if better is not None:\n", "        if True:\n"),
            ('"chosen": one.replies[better]', '"chosen": other'),
            ("= set(one.replies) - {better}", "= {better}"),
            ('{"chosen": one.models[better]', '{"chosen": one.models[number]'),
            ('"rejected": one.models[number]}', '"rejected": one.models[better]}'),
            ('"annotator": one.annotator, "model": one.models[number]}', '"annotator": one.annotator}'),
            ('"label": not broken', '"label": bool(broken)'),
            ("told.rules[rule] for", "rule for"),
        ]
    ),
    *(
        Mutation("annotation/store/exports.py", old, new, TALKING)
        for old, new in [
            ("if KINDS[project.kind].goes_on else {}", "if False else {}"),
            ("if talk else [],", "if False else [],"),
            ("for choice in _choices(one)]", "for choice in _choices(one)][1:]"),
            ("turn {turn.number + 1}", "turn {turn.number}"),
        ]
    ),
    *(
        Mutation("annotation/task_kinds.py", old, new, "annotation/test_choices.py")
        for old, new in [
            ("len(question.texts) != 2 * turn + 2 or", ""),
            ('or sent.get("turn") != turn:', "or False:"),
            ("in (2 * turn, 2 * turn + 1)}", "in question.texts}"),
            ("or not set(broken) <= set(map(str, replies)):", "or False:"),
            ("len(question.rules) - 1)", "len(question.rules))"),
            ("if not numbers or len(set(rules)) < len(rules):", "if not numbers:"),
            ("sorted(broken.get(str(number), ()))", "broken.get(str(number), ())"),
            ("if question.rules else {}", "if True else {}"),
            ("[*question.before, choice", "[choice"),
            ('if one != choice["better"])', 'if one == choice["better"])'),
            ("_choose, goes_on=_better)", "_choose, goes_on=_worse)"),
            ("_choose, goes_on=_worse)", "_choose, goes_on=_better)"),
        ]
    ),
    *(
        Mutation("annotation/app/forms.py", old, new, "annotation/test_choices.py")
        for old, new in [
            ("range(len(question.rules)) if fields.get", "range(1) if fields.get"),
            ('_int(fields.get("turn"))', "0"),
        ]
    ),
    *(
        Mutation("annotation/app/chat_worker.py", old, new, PAGES)
        for old, new in [
            ("self._troubles.pop(turn, None) is not None:", "self._troubles.get(turn) is not None:"),
            ("            self._tries[turn] += 1\n", "            pass\n"),
            ("            if len(asked) > 1:\n", "            if False:\n"),
            ("            except Exception as problem:  # the store", "            except KeyError:  # the store"),
            ("                self._wanted.set()\n", ""),
            ("TOGETHER + len(self._troubles)", "TOGETHER"),
            ("if turn.id not in self._troubles}", "}"),
            ("list(turns.items())[:TOGETHER]]", "turns.items()]"),
            ("except Exception as problem:  # this", "except KeyError as problem:"),
            ("                self._troubles[turn] = replies\n", "                pass\n"),
            ("        self._wanted.set()\n        self._thread.start()", "        self._thread.start()"),
            ("+= 1\n        self._wanted.set()", "+= 1"),
        ]
    ),
    *(
        Mutation("annotation/app/conversations.py", old, new, PAGES)
        for old, new in [
            ("    partner.wake(turn.id)\n", ""),
            ("    _partner(desk).wake(turn.id)\n", ""),
            ("if turn.number < len(chosen) else None", "if False else None"),
            ("    if turns[-1].replies is None:\n", "    if False:\n"),
            ("bool(turns) and len(chosen) == len(turns)", "bool(turns)"),
            ("    if change and whole:\n", "    if False:\n"),
            ("    if change and whole:\n", "    if change:\n"),
            ("    if ended:\n", "    if False:\n"),
            ("    if whole or not turns:\n", "    if not turns:\n"),
            ('one.get("stop") == "length")', "False)"),
            ("    allowed(desk, visitor, form)\n    partner", "    partner"),
            ("    allowed(desk, visitor, form)\n    with desk.store.read", "    with desk.store.read"),
            ("    allowed(desk, visitor, form)\n    with desk.store.write", "    with desk.store.write"),
            ("    if desk.partner is None:\n", "    if False:\n"),
            ("    if not isinstance(message, str):\n", "    if False:\n"),
            ("or assignment.turns[-1].replies is not None:", "or False:"),
        ]
    ),
    *(
        Mutation("annotation/app/session.py", old, new, PAGES + " annotation/app/test_security.py")
        for old, new in [
            ("if not isinstance(answer, dict) or not 8 <=", "if not 8 <="),
            ("or not 8 <= len(sending) <= 64:", "or False:"),
        ]
    ),
    *(
        Mutation("rollouts/two_replies.py", old, new, "rollouts/test_two_replies.py")
        for old, new in [
            ("(self.talkers[0], self.talkers[-1])", "(self.talkers[0], self.talkers[0])"),
            ("range(TRIES)", "range(1)"),
            ("(turn and _stands(replies)):", "False:"),
            ("bool(said.strip()) and all", "all"),
            ("and all(said != text for text, _, _ in before)", ""),
            ("not replies[draw][0].strip():", "False:"),
            ("str(done.stop_reason)", "'stop'"),
            ("except TemplateError as problem:", "except KeyError as problem:"),
            ("            if room < 1:\n", "            if room < 0:\n"),
            ("min(room, self.sampling.max_new_tokens)", "self.sampling.max_new_tokens"),
            ("seed_for(number, draw, turn)", "seed_for(number, 0, turn)"),
            ("seed_for(number, draw, turn)", "seed_for(number, draw, 0)"),
            ('.replace("\\0", "\\N{REPLACEMENT CHARACTER}")', ""),
            ("replies[draw:] = [", "replies[draw:draw] = ["),
        ]
    ),
    *(
        Mutation("annotation/store/rulings.py", old, new, "annotation/store/test_rulings.py")
        for old, new in [
            ("    if not decidable(project):\n", "    if False:\n"),
            ("if known.item_id != item.id:", "if False:"),
            ("        return known\n", "        pass\n"),
            ("if not exports.done(connection, project, item):", "if False:"),
            ("if version != len(item.rulings):", "if False:"),
            ("version=version + 1, answer=answer, sent", "version=1, answer=answer, sent"),
            ("check(sent, asked(project, item)) != known.answer:", "check(sent, asked(project, item)) is None:"),
        ]
    ),
    *(
        Mutation("annotation/store/rulings.py", old, new, "annotation/app/test_admin.py")
        for old, new in [
            ("done(connection, project, item) if not", "done(connection, project) if not"),
            ("in item.rulings[-1:])]", "in [])]"),
            ("return kind.ranking is not None or kind.verdict is not None", "return True"),
        ]
    ),
    *(
        Mutation("annotation/app/admin.py", old, new, "annotation/app/test_admin.py")
        for old, new in [
            ("or item.project_id != project.id or", "or"),
            ("or not rulings.decidable(project):", "or False:"),
            ("    allowed(desk, visitor, form)\n    sent =", "    sent ="),
            ("len(item.rulings)", "0"),
        ]
    ),
    *(
        Mutation("annotation/consensus.py", old, new, "annotation/store/test_rulings.py")
        for old, new in [
            ("if one.item in decided else one", "if False else one"),
            ("for better, worse in tiers for", "for worse, better in tiers for"),
            ("decided.tiers, decided.failed, pairs", "decided.tiers, (), pairs"),
            ("decided.tiers, decided.failed, pairs", "one.order, decided.failed, pairs"),
            ("combinations(decided.tiers, 2)", "combinations(decided.groups, 2)"),
        ]
    ),
    *(
        Mutation("annotation/store/exports.py", old, new, "annotation/store/test_rulings.py")
        for old, new in [
            (".order_by(Ruling.version)", ".order_by(Ruling.version.desc())"),
            ('"ruling": decisions.get(one.item.name)', '"ruling": None'),
        ]
    ),
    *(
        Mutation("annotation/training_rows.py", old, new, "annotation/store/test_rulings.py")
        for old, new in [
            ('signed = [ruling.get("strength", STRONGEST) / STRONGEST]', "pass"),
            ('ruling.get("strength", STRONGEST) / STRONGEST', 'ruling.get("strength", STRONGEST)'),
            ('1 if number in told.rulings[item]["good"] else -1', "balance"),
            ('wrong = told.rulings[item]["wrong"]', "pass"),
            ("most = counted[wrong]", "pass"),
        ]
    ),
    *(
        Mutation("annotation/agreement.py", old, new, "annotation/test_agreement.py")
        for old, new in [
            ("for values in units if len(values) > 1]\n    every", "for values in units]\n    every"),
            ("counts[unit, every[value]] += 1", "counts[unit, every[value]] = 1"),
            ('level_of_measurement="nominal"', 'level_of_measurement="ordinal"'),
        ]
    ),
    *(
        Mutation("annotation/task_kinds.py", old, new, "annotation/store/test_rulings.py")
        for old, new in [
            ("len(answers) - marks[number])", "0)"),
            ("max(given) - min(given)", "max(given)"),
            ("/ (HIGHEST - 1)", "/ HIGHEST"),
            ("most_common(1)[0][1] / len(answers)", "most_common(1)[0][1] / (len(answers) + 1)"),
            ("step {wrong + 1} is", "step {wrong} is"),
            ('" = ".join(map(_letter', '" > ".join(map(_letter'),
            ("filter(None, (order, failed))", "(order, failed)"),
            ("answer['of'].index(answer['better'])", "answer['better']"),
            ("for name, letters in marks if letters)", "for name, letters in marks)"),
        ]
    ),
    *(
        Mutation("annotation/store/exports.py", old, new, TALKING)
        for old, new in [
            ("Assignment.judgements.any())", 'Assignment.state == "done")'),
            ("said.seconds if history else _seconds(one)", "said.seconds"),
        ]
    ),
    *(
        Mutation("recipes/annotate/item_rows.py", old, new, "recipes/test_annotate.py")
        for old, new in [
            ('() if talk and "prompt" not in row', '() if "prompt" not in row'),
            ('if talk and said and said[-1].role == "user":', "if False:"),
        ]
    ),
    *(
        Mutation("recipes/annotate/importing.py", old, new, "recipes/test_annotate.py")
        for old, new in [
            ("    if config.models and kind in KINDS and KINDS[kind].goes_on:\n", "    if False:\n"),
            ('.replace("\\0", "\\ufffd")', ""),
            ("for answer in answers}) >= fewest\n", "for answer in answers}) > 1\n"),
            ("if not fewest <= config.completions", "if not 0 <= config.completions"),
            ("* len(models) <= most:", "* len(models) <= 99:"),
        ]
    ),
]  # fmt: skip
