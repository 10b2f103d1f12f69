"""Faults of the annotation app: who may do what, what is kept, what is shown, and what is learned from it."""

from tests.mutations import Mutation

WORK = "annotation/store/test_work.py"
PEOPLE = "annotation/store/test_people.py"
PROJECTS = "annotation/store/test_projects.py"
KINDS = "annotation/test_kinds.py"
LESSONS = "annotation/test_lessons.py"
ENTRANCE = "annotation/app/test_security.py annotation/app/test_managing.py"
SECURITY = "annotation/app/test_security.py annotation/app/test_judging.py"

MUTATIONS = [
    *(
        Mutation("annotation/store/work.py", old, new, WORK)
        for old, new in [
            ('Assignment.state == "open")\n    if (found', 'Assignment.state == "none")\n    if (found'),
            ("Item.given < project.annotators_per_item", "Item.given <= project.annotators_per_item"),
            ("Item.id.not_in(select(Assignment.item_id).where(Assignment.user_id == user.id)),", ""),
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
            ('if assignment.state in ("skipped", "lapsed") and not', "if False and not"),
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
            ("and found.expires > now() else None\n\n\ndef accept", "else None\n\n\ndef accept"),
            ("    found.uses_left -= 1\n    if found", "    if found"),
            ("found.role, name, password)", "'manager', name, password)"),
            ("if not _NAME.fullmatch(name):", "if False:"),
            ("if len(password) < SHORTEST:", "if len(password) < 1:"),
            ("func.lower(User.name) == name.lower()", "User.name == name"),
            ("secrets.token_bytes(16)))", "bytes(16)))"),
            ("right and not user.disabled else None", "right else None"),
            ("return user if user and right and", "return user if user and"),
            ("found.expires > now() and not found.user.disabled", "not found.user.disabled"),
            ("and not found.user.disabled", ""),
            (".values(expires=now())", ".values(csrf='')"),
            ("digest=_digest(entry.cookie)", "digest=entry.cookie"),
            ("            digest=_digest(secret),", "            digest=secret,"),
            ("        found.uses_left -= 1\n        connection", "        connection"),
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
        ]
    ),
    Mutation("annotation/store/projects.py", ', ~Assignment.repeat)', ")", WORK),
    *(
        Mutation("annotation/kinds.py", old, new, KINDS)
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
        Mutation("annotation/lessons.py", old, new, LESSONS)
        for old, new in [
            ("(1 if vote.first == chosen else -1)", "1"),
            ("/ STRONGEST for item", "for item"),
            ("sum(signed) / len(signed)", "sum(signed)"),
            ('"chosen": _said(told, one, chosen)', '"chosen": _said(told, one, rejected)'),
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
        Mutation("annotation/app/guard.py", old, new, "annotation/app/test_security.py")
        for old, new in [
            ("if read > LARGEST:", "if False:"),
            ("if not length.isdigit() or int(length) > LARGEST:", "if False:"),
            ("not in (\"same-origin\", \"none\"):", "not in (\"same-origin\", \"none\", \"same-site\"):"),
            ("if origin is not None and urlsplit", "if False and urlsplit"),
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
        Mutation("annotation/app/visitor.py", old, new, SECURITY)
        for old, new in [
            ('if visitor.user.role != "manager":', "if False:"),
            ("    from_here(request)\n", ""),
            ('same_token(visitor.csrf, form.get("csrf", ""))', "pass"),
            ("desk.writes.count(str(visitor.user.id))", "pass"),
            ("    desk.writes.check(str(visitor.user.id))\n", ""),
        ]
    ),
    *(
        Mutation("annotation/app/entrance.py", old, new, ENTRANCE)
        for old, new in [
            ("httponly=True", "httponly=False"),
            ('samesite="strict"', 'samesite="lax"'),
            ("secure=desk.https", "secure=False"),
            ("        desk.failures.count(_address(request))\n        return desk.page", "        return desk.page"),
            ("        desk.failures.count(_address(request))\n        raise LookupError", "        raise LookupError"),
        ]
    ),
]  # fmt: skip
