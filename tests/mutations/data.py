"""Faults of conversations and data sets: a mask that is off, a boundary that is lost, a row that is misread."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("data/chat.py", old, new, "data/test_chat.py")
        for old, new in [
            ("[1 if stop else 0 :]", "[0:]"),
            ('(prompt, "0")', '("0",)'),
            ('(prompt, "0")', "(prompt,)"),
            ('(prompt, "0")', "()"),
            ("if whole[: len(head)] == head:", "if True:"),
            ("mask += [False] * len(between)", "mask += [True] * len(between)"),
            ("mask += [True] * len(made)", "mask += [False] * len(made)"),
            ("mask + [True] * len(produced)", "mask + [True] * (len(produced) - 1) + [False]"),
            ("mask = [False] * len(token_ids)", "mask = [True] * len(token_ids)"),
            ("+ tail[: stop.end()]", ""),
            ("+ tail[: stop.end()]", "+ tail"),
            ("said = rendered[len(prompt) : len(rendered) - len(tail)]", "said = rendered[len(prompt) :]"),
            ("return _Produced(said + tail", "return _Produced(message.content + tail"),
            ("not rendered.startswith(prompt) or ", ""),
            ("if not prompt.startswith(text):", "if False:"),
            ("if missing := _dropped(message, said):", "if missing := '':"),
            ("if any(stop.group(1) in text for text in _own_words(message)):", "if False:"),
            ("if found is None:", "if False:"),
            ("if len(parts) != 2:", "if False:"),
            ("if not head.startswith(prompt) and not prompt.startswith(head):", "if False:"),
            ("if not head.startswith(prompt) and not prompt.startswith(head):", "if not head.startswith(prompt):"),
            ("if not stopped:", "if stopped:"),
            ("tail[stop.end() :]", "tail"),
            ('Message("assistant", _SENTINEL), *new_messages]', "*history[-1:], *new_messages]"),
            ("frozenset(named | {stop[0]})", "frozenset(named)"),
            ("frozenset(named | {stop[0]})", "frozenset({stop[0]})"),
            ("named.add(int(tokenizer.eos_token_id))", "pass"),
            ('if not TAG.fullmatch(texts.get(t, ""))', ""),
            ("special | self.stop_ids if", "self.stop_ids if"),
            ("[*_assistant_turns(messages), len(messages)]", "[len(messages)]"),
            ("if not turns:", "if False:"),
            ("if not tokenizer.chat_template:", "if False:"),
            ('if train_on == "all":', "if True:"),
            ('messages[: turn + 1], train_on="last"', 'messages, train_on="last"'),
            ("            if len(turns) < 2:\n", "            if True:\n"),
        ]
    ),
    *(
        Mutation("data/chat.py", old, new, "data/test_tools.py")
        for old, new in [
            ("if message.tool_calls and not rendered.endswith(tail):", "if False:"),
            ("if last and not TAG.fullmatch(last.group(1)) else tail", "if last else tail"),
            ("elif squeeze(message.content) not in text:", "elif False:"),
            ("if not shown(message.reasoning, text):", "if False:"),
            ("return dropped_of_calls(message, text)", 'return ""'),
            ("(call.arguments, *words_of(call))", "(call.arguments,)"),
            ("            if end == len(messages):\n", "            if end == -1:\n"),
            ("            self._renderer.refuse_dropped(messages, text)\n", ""),
        ]
    ),
    *(
        Mutation("data/rendering.py", old, new, "data/test_chat.py data/test_tools.py data/test_ordinary_text.py")
        for old, new in [
            ("add_special_tokens=False", "add_special_tokens=True"),
            ("**self.options", ""),
            ("add_generation_prompt=generate", "add_generation_prompt=False"),
            ("or _BRACKETED.fullmatch(text)", ""),
            ("t in special or ", ""),
            ("message.content if own else self._ordinary.hide(message.content)", "message.content"),
            ("message.content if own else self._ordinary.hide", "self._ordinary.hide"),
            ("key: self._ordinary.hide(value)", "key: value"),
            ("self._ordinary.hide_in(json.loads(tool))", "json.loads(tool)"),
            ("dict.fromkeys(self._tools_as, schemas) if schemas", "{} if schemas"),
            ('if "xml_tools" in source else', "if False else"),
            ('"tool_calls" not in source and ', ""),
            ('"tool_calls" not in source and "<tool_call>" in source', "False"),
            ("call.arguments if as_text else", "call.arguments if not as_text else"),
            ('{"id": call.id} if call.id else {}', '{"id": call.id}'),
            ('{"id": call.id} if call.id else {}', "{}"),
            (
                "self._ordinary.hide(text[end : tag.start()]) + tag.group()",
                "self._ordinary.hide(text[end : tag.end()])",
            ),
            ("return found + self._ordinary.hide(text[end:])", "return found + text[end:]"),
            ("if name not in text:", "if False:"),
            ('message.role == "tool" and not shown', "False and not shown"),
            ("if missing := dropped_of_calls(message, text):", "if missing := '':"),
            ("json.dumps(text, ensure_ascii=False)[1:-1]", "text"),
            ("            yield key\n", ""),
        ]
    ),
    *(
        Mutation("data/ordinary_text.py", old, new, "data/test_ordinary_text.py")
        for old, new in [
            ("key=len, reverse=True", "key=len"),
            ("{self.hide_in(key): self.hide_in(item)", "{key: self.hide_in(item)"),
            ("> expected", "> expected + 1"),
            ("found = [ids.get(i, i) for i in encoded]", "found = encoded[:-1]"),
            ('model["vocab"] = [[renamed(piece), score]', 'model["vocab"] = [[piece, score]'),
            ('if not {"".join(pair), *pair} & self._number.keys()', ""),
            ('model["unk_token"] = renamed(model["unk_token"])', "pass"),
            ("self.show(respelled)", "self.show(text)"),
            ("self.show(respelled)", "respelled"),
        ]
    ),
    *(
        Mutation("data/messages.py", old, new, "data/test_tools.py data/test_rows.py data/test_demonstrations.py")
        for old, new in [
            ("if not isinstance(said, str) or said not in _ROLES:", "if False:"),
            ("if not value.strip() and not may_be_empty:", "if False:"),
            ('"\\ud800" <= letter <= "\\udfff"', '"\\ud800" < letter <= "\\udfff"'),
            ('if calls and role != "assistant":', "if False:"),
            ('if reasoning and role != "assistant":', "if False:"),
            ("tools=tools if i == first else ()", "tools=tools"),
            ('message.role in ("system", "user")', "True"),
            ('if fields.get("type") not in (None, "function"):', "if False:"),
            ("if not isinstance(loaded, Mapping):", "if False:"),
            ("if item is not None or key in required or (", "if True or ("),
            ("or key in required or (", "or ("),
            ("and _may_be_null(properties[key])", ""),
            ('"$ref" in fields or ', ""),
            (' or None not in _items(fields.get("enum", [None]))', ""),
            ('fields.get("items")', "None"),
            ('if v is not None or k in ("default", "const", "example")', ""),
            ('whole = fields if "function" in fields else', "whole = fields if True else"),
            (", allow_nan=False", ""),
            ("(ValueError, RecursionError)", "ValueError"),
            ("value if (loaded := _loaded(value)) is None else loaded", "value"),
            ('if fields.get("type") != "text" or not', "if not"),
            ("if value is None and may_be_empty:", "if False:"),
            ('bool(calls) or role == "tool"', "bool(calls)"),
        ]
    ),
    *(
        Mutation("data/rows.py", old, new, "data/test_rows.py data/test_demonstrations.py")
        for old, new in [
            ("if target in columns:", "if False:"),
            ("if name not in columns.values()}", "}"),
            ("(source,) if source in row.fields else source.split", "source.split"),
            ("cast(Sequence[Any], value), 1)", "cast(Sequence[Any], value))"),
            ("*near, *_ALSO_CALLED", "*near, *()"),
        ]
    ),
    *(
        Mutation("data/files.py", old, new, "data/test_sources.py")
        for old, new in [
            ("enumerate(_lines(path), 1)", "enumerate(_lines(path))"),
            ("if line.strip():", "if True:"),
            ('"utf-8-sig"', '"utf-8"'),
            ("(OSError, EOFError, zlib.error, lzma.LZMAError)", "OSError"),
            ('error.msg == "Extra data"', "False"),
            ("while name.endswith(COMPRESSED):\n        name =", "if name.endswith(COMPRESSED):\n        name ="),
            (
                "while name.endswith(COMPRESSED):\n                name,",
                "if name.endswith(COMPRESSED):\n                name,",
            ),
            ("    name = name.lower()\n", ""),
            ("pyarrow.BufferReader(opened.read())", "pyarrow.memory_map(str(path))"),
            ("strict=True)\n    try", "strict=False)\n    try"),
            ('newline="")', "newline=None)"),
            ("line = table.line_num + 1\n        for", "line = table.line_num\n        for"),
            ("if cells and len(cells) != len(header):", "if False:"),
            ("if header.count(cell) > 1", "if False"),
            ('next((mark for mark in ",;\\t" if mark in header), ",")', '","'),
            ('("role" in one or "from" in one)', "True"),
            ("return text or None", "return text"),
            ('== b"ARROW1"', '== b""'),
            ("            source.seek(0)\n", ""),
        ]
    ),
    *(
        Mutation("data/sources.py", old, new, "data/test_sources.py data/test_mixtures.py")
        for old, new in [
            ("islice(_found(source, split), limit)", "list(_found(source, split))[:limit]"),
            ("limit < 1", "limit < 0"),
            ("if not rows:", "if False:"),
            ('_names(names[file], split or "train")', "True"),
            ("if not chosen and split is not None:", "if False:"),
            ("for file in chosen or files}", "for file in chosen}"),
            ('for file in sorted(path.rglob("*"))', 'for file in sorted(path.glob("*"))'),
            ('split not in (None, "train") and not _names(path.name, split)', "False"),
            ("name, config, split=split", "name, None, split=split"),
            ('{"revision": revision} if revision else {}', "{}"),
            ('_hub(source, hub, split or "train")', '_hub(source, hub, split or "test")'),
            ("map_columns(rows, columns) if columns else rows", "rows"),
            ("copy.deepcopy(dict(row))", "row"),
            ("digest.update(", "_ = ("),
            ("if len(kinds) > 1:", "if False:"),
            ("and path.name not in _NO_DATA", ""),
            ("sorted(glob.glob(str(pattern), recursive=True))", "sorted(glob.glob(str(pattern)))"),
            ("split is None or _names(name, split)", "True"),
            ('"train" in splits or len(splits) > 1', "True"),
            ("and not (path / _SAVED[1]).is_file()", ""),
        ]
    ),
    *(
        Mutation("data/mixtures.py", old, new, "data/test_mixtures.py")
        for old, new in [
            ("total = max(", "total = min("),
            ("weight / sum(weights)", "weight"),
            ("passes, rest = divmod(count, len(items))", "passes, rest = count // len(items), 0"),
            ('seed_for(seed, "mixture", number)', 'seed_for(0, "mixture", number)'),
            ("(i + 0.5) / count,", "i,"),
            ("(i + 0.5) / count,", "0.0,"),
            ("if not 0 < weight < math.inf:", "if not weight > 0:"),
            ("if not 0 < weight < math.inf:", "if weight == 0:"),
            ("seed)[:limit]", "seed)"),
            ("            del wanted[problem.field]\n", "            raise\n"),
            (
                "if all(field in problems for _, problems in found):",
                "if any(field in problems for _, problems in found):",
            ),
            ("exists(source) or ", ""),
        ]
    ),
    *(
        Mutation("data/tasks.py", old, new, "data/test_tasks.py data/test_mixtures.py rewards/test_trl.py")
        for old, new in [
            ('rpartition("####")[2]', 'partition("####")[0]'),
            ('if "####" not in gold or not answer:', "if not answer:"),
            ('if "####" not in gold or not answer:', 'if "####" not in gold:'),
            ("answer=answer, gold=gold", "answer=gold, gold=gold"),
            ('if "answer" not in row and isinstance(judged, Mapping):', "if isinstance(judged, Mapping):"),
            ('if "answer" not in row and isinstance(judged, Mapping):', 'if "reward_model" in row:'),
            ("seen = {question_of(task.prompt) for task in train}", "seen = set()"),
            ("            seen.add(question)\n", ""),
            ('" ".join(m.text.split())', "m.text"),
            (' for m in prompt if m.role != "system"', " for m in prompt"),
            ("len(heldout) - len(kept))", "len(kept))"),
            ('*(m for m in dressed if m.role != "system")', "*dressed"),
            ('if m.role == "user" else m for m', "for m"),
            ('count("{prompt}") != 1', 'count("{prompt}") < 1'),
            ('if prompt[-1].role not in ("user", "tool"):', "if False:"),
            ('split="train" if split is None else split', 'split="train"'),
            ("size=size, seed=seed", "size=size, seed=0"),
            ("limit=limit, seed=seed", "limit=limit, seed=0"),
            ("conversational=not isinstance", "conversational=isinstance"),
        ]
    ),
    *(
        Mutation("data/gym.py", old, new, "data/test_gym.py")
        for old, new in [
            ("split_of(question) != split or ", ""),
            ('(split == "heldout" and question in seen)', "False"),
            ("% _HELDOUT_SHARE == 0", "% _HELDOUT_SHARE <= 1"),
            ('if int.from_bytes(digest[:8], "big") %', "if hash(question) %"),
            ("seed_for(name, split, seed, chunk) % 2**31", "seed"),
            ("seed_for(name, split, seed, chunk) % 2**31", "seed_for(name, split, chunk) % 2**31"),
            ("size=size, **options)\n        except", "size=size)\n        except"),
            ('"options": options', '"config": {}'),
            ("if option in _OURS:", "if False:"),
            ("(isinstance(value, bool) and bool not in wanted)", "False"),
            ("not isinstance(value, wanted) or", ""),
            ('text.lower(), "a number', 'text, "a number'),
            ("defaults.keys() - _OURS", "()"),
        ]
    ),
    *(
        Mutation("data/tokenizer.py", old, new, "data/test_tokenizer.py")
        for old, new in [
            ("if folder.is_dir() and not any(", "if False and not any("),
            ("        _try(cast(ChatTokenizer, tokenizer), chat_template)\n", ""),
            ("        tokenizer.chat_template = _read_template(chat_template)\n", ""),
            ("    if not text.strip():\n", "    if False:\n"),
            ("(OSError, UnicodeDecodeError)", "OSError"),
            ("if isinstance(own, dict) else", "if False else"),
            ("if not folder.is_dir() and (", "if False and ("),
        ]
    ),
    *(
        Mutation("data/preferences.py", old, new, "data/test_preferences.py data/test_layouts.py")
        for old, new in [
            ("prompt = before  #", "pass  #"),
            ("if before[len(before) - len(prompt) :] != prompt:", "if False:"),
            ('if not isinstance(row.fields.get("prompt"), str) and before:', "if before:"),
            ("if rejected[:-1] != prompt:", "if False:"),
            ("    if not kept:\n", "    if False:\n"),
            ("if not prompt or prompt[-1].role", "if prompt[-1:] and prompt[-1].role"),
            ('if message.role != "assistant":', "if False:"),
            ("if replace(last[0], tools=()) == replace(last[1], tools=()):", "if False:"),
            (
                "        last[0].content,\n        last[1].content,\n",
                "        last[1].content,\n        last[0].content,\n",
            ),
            ("source=row.place,\n        opening=opening", "source=row.id,\n        opening=opening"),
            ('if "prompt" in row or len(pieces) == 1:', "if len(pieces) == 1:"),
            ("words.strip()) for who", "words) for who"),
            ("    if not all(message.content for message in said):\n", "    if False:\n"),
            ("    if pieces[0].strip():\n", "    if False:\n"),
            ('train_on="last")', 'train_on="all")'),
            ("ids.token_ids[len(given) :]", "ids.token_ids[len(given) - 1 : -1]"),
            ("p.rejected, False, *about", "p.rejected, True, *about"),
            ("p.time, p.opening, p.partial)", "p.time, p.opening)"),
            ("[: -1 if partial else None]", ""),
            ("[: -1 if partial else None]", "[:-1]"),
            ("min(map(len, said)) - 1)", "min(map(len, said)))"),
            ("given + ids[:start], ids[start:]", "given, ids[start:]"),
            ("    if opening:\n", "    if False:\n"),
            ("Labelled(example, j.good)", "Labelled(example, True)"),
            ("partial=bool(field)", "partial=bool(opening)"),
            ("    if _says_nothing(value):\n", "    if False:\n"),
            ('None if "chosen" in row or "rejected" in row else layout_of(row)', "layout_of(row)"),
            ("if not isinstance(good, bool) and good not in (0, 1):", "if False:"),
            ("if len(said) != 1 or ", "if "),
            ('for field in ("steps", "initial_reason_steps")', 'for field in ("steps",)'),
            ("    if _is_judged(row):\n", "    if False:\n"),
            ("    if not (found := layout.read(row)):\n", "    found = layout.read(row)\n    if False:\n"),
        ]
    ),
    *(
        Mutation("data/layouts.py", old, new, "data/test_layouts.py")
        for old, new in [
            ("if first != second:", "if True:"),
            ("if first > second else", "if first < second else"),
            ("abs(first - second)", "first - second"),
            ('one.get("fine-grained_score"), "completions', 'one.get("overall_score"), "completions'),
            ("texts[choice], texts[1 - choice]", "texts[1 - choice], texts[choice]"),
            ("and rating == wanted] for wanted in (1, -1)", "and rating == wanted] for wanted in (1, 0)"),
            ("taken = rated[chosen][0] if", "taken = rated[0][0] if"),
            ("if rated[chosen][1] != -1 else None", "if True else None"),
            ("if not 0 <= chosen < len(rated):", "if False:"),
            ("opening=before, partial=True", "opening=before"),
            ('one.get("fine-grained_score") is not None]', "True]"),
            ("choice = int(choice)", "pass"),
            ("(speaker.lower(), text) for", "('user', text) for"),
            ("isinstance(row.fields.get(name), Mapping) for", "name in row for"),
            ('before += f"{taken}\\n"', 'before = f"{taken}\\n"'),
            ("            break  # later", "            continue  # later"),
            ("        if isinstance(chosen, int):\n", "        if False:\n"),
            ("if p.chosen != p.rejected]", "]"),
            ('key=lambda row: row.fields.get("prompt")', "key=lambda row: None"),
            ("isinstance(value, bool) or not", "not"),
            ("len(texts) != 2 or choice not in (0, 1)", "choice not in (0, 1)"),
            ("len(texts) != 2 or choice not in (0, 1)", "len(texts) != 2"),
        ]
    ),
    *(
        Mutation("data/packing.py", old, new, "data/test_packing.py")
        for old, new in [
            ("self.ends.append(len(self.token_ids) - 1)", "self.ends.append(len(self.token_ids))"),
            ("if a != b), len(first))", "if a != b), 0)"),
            ("return min(alike, before, ", "return min(alike, "),
            ("return min(alike, before, min(map(len, texts)) - 1)", "return min(alike, before)"),
            ("return min(alike, before, ", "return min(alike, before + 1, "),
            ("e.continuation[size:], e.learned[size:]", "e.continuation[size:], e.learned[: len(e.learned) - size]"),
            ("    if len(examples) < 2:\n        return 0\n", ""),
            ("first, last = min(texts), max(texts)", "first, last = texts[0], texts[1]"),
            ("room < len(prefix) + _length(parts[0])", "room < len(prefix) + _length(parts[0][:1])"),
            ("(length := _length(parts[fits]))", "(length := _length(parts[fits][:1]))"),
            ("for part in parts[:fits] for member in part", "for part in parts[:1] for member in part"),
            ("key=lambda unit: unit[1][0].prefix", "key=lambda unit: unit[0]"),
            (" or not unit[0].prefix)", ")"),
            ("if (ends[-1] if ends else 0) != len(examples):", "if False:"),
            ("{e.prefix for e in unit}) > 1", "{e.prefix for e in unit}) > 2"),
            ("[(end - size, examples", "[(end - 1, examples"),
            ('{1: "example", 2: "pair"}', '{1: "example", 3: "pair"}'),
            (
                "sum(len(example.continuation) for example in unit)",
                "max(len(example.continuation) for example in unit)",
            ),
        ]
    ),
    *(
        Mutation("data/tasks.py", old, new, "data/test_tasks.py")
        for old, new in [
            ("< share * 2**63]", "> share * 2**63]"),
            ('seed_for(seed, "held out", *question_of', 'seed_for("held out", *question_of'),
            ('seed_for(seed, "held out", *question_of(task.prompt))', "seed_for(seed, str(task))"),
            ("    if not all(sides):\n", "    if False:\n"),
            ("disjoint(tasks, offered()) if", "Disjoint(list(offered()), 0) if"),
            ("Divided(learned, heldout[:limit]", "Divided(learned, heldout"),
            ("if len(heldout) > limit else ()", ""),
            (
                "Divided(learned, heldout[:limit], (*met_before(removed), ",
                "Divided(learned, heldout[:limit], (*met_before(0), ",
            ),
            ("'to hold out' if sides[0] else 'to train on'", "'to train on' if sides[0] else 'to hold out'"),
        ]
    ),
    *(
        Mutation("data/tokenizer.py", old, new, "data/test_tokenizer.py")
        for old, new in [
            ("        if token not in ends:\n", "        if True:\n"),
            ("[*own, *sorted(tokenizer.all_special_ids)]", "sorted(tokenizer.all_special_ids)"),
        ]
    ),
    *(
        Mutation("data/convert.py", old, new, "data/test_convert.py")
        for old, new in [
            ('"chosen": [chosen], "rejected"', '"chosen": [rejected], "rejected"'),
            ("[_readable(p, fields | tools_column(p.prompt) |", "[_readable(p, fields |"),
            ('"label": j.good} | tools_column(j.prompt)', '"label": j.good}'),
            ("    if feedback.partial:\n", "    if False:\n"),
            ("- set(speakers)", "- {*speakers, 'system'}"),
            ('"label": j.good}', '"label": True}'),
            ("for j in judged if j.good)", "for j in judged)"),
            ('{"steps": p.opening} if p.partial else {}', "{}"),
            ("    if said != (p.prompt", "    if False and said != (p.prompt"),
            ("except Unusable as problem:", "except ZeroDivisionError as problem:"),
            ('{"user": "Human", "assistant": "Assistant"}', '{"user": "Assistant", "assistant": "Human"}'),
        ]
    ),
    *(
        Mutation("runs/jsonl.py", old, new, "recipes/test_convert.py recipes/test_best_of_n.py")
        for old, new in [
            ("    if path.exists():\n", "    if False:\n"),
            ("    if not path.parent.is_dir():\n", "    if False:\n"),
            ('if not output.endswith(".jsonl"):', "if False:"),
        ]
    ),
    *(
        Mutation("recipes/convert.py", old, new, "recipes/test_convert.py")
        for old, new in [
            ("left_out = list(found.left_out)", "left_out = list[str]()"),
            ("            left_out.append(str(problem))\n", ""),
            ("if not target.once:", "if True:"),
            ("if not target.once:", "if False:"),
            ("    if not some:\n", "    if False:\n"),
            ("split=config.split or None", "split=None"),
            ("limit=config.limit", "limit=None"),
            ("system=config.system", "system=None"),
            ("prompt_template=config.prompt_template", 'prompt_template="{prompt}"'),
        ]
    ),
    *(
        Mutation("runs/jsonl.py", old, new, "recipes/test_convert.py")
        for old, new in [
            ("new.unlink(missing_ok=True)", "pass"),
            ("except OSError as problem:", "except ZeroDivisionError as problem:"),
            ("count += 1", "count = 1"),
        ]
    ),
]
