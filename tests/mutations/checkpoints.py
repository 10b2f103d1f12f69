"""Faults of saving and resuming: what is not checked, not synced, not kept, not put back."""

from tests.mutations import Mutation

FAILED = "        shutil.rmtree(new, ignore_errors=True)\n"

MUTATIONS = [
    *(
        Mutation("training/checkpoint.py", old, new, "training/test_checkpoint.py")
        for old, new in [
            ("if digest != expected_digest:", "if False:"),
            ("if (found := path.stat().st_size) != size:", "if (found := path.stat().st_size) < 0:"),
            ("if not path.is_file():", "if False:"),
            ('folder.rglob("*") if p.is_file())', 'folder.glob("*") if p.is_file())'),
            ("(_step(path), path.suffix", "(path.name, path.suffix"),
            ('path.suffix != ".old"), reverse=True', 'path.suffix != ".old")'),
            ("(-item[0], _step(item[1]))", "(item[0], _step(item[1]))"),
            ("(-item[0], _step(item[1]))", "(-item[0], -_step(item[1]))"),
            ("ours[keep_last:]", "ours[keep_last + 1 :]"),
            ("ours[keep_last:]", "ours[keep_last - 1 :]"),
            ("if path not in scored[:1]:", "if True:"),
            ("if path not in scored[:1]:", "if path not in scored:"),
            (" if _step(path) <= step]", "]"),
            ("free < expected_bytes:", "free <= expected_bytes:"),
            ("free < expected_bytes:", "free < 0:"),
            (", *map(_size, _candidates(root)[:1])]", "]"),
            ("max([expected_bytes, _size(new), ", "max([expected_bytes, "),
            ("(errno.ENOSPC, errno.EDQUOT)", "(errno.ENOSPC,)"),
            ('f"os error {errno.ENOSPC}" in str(error)', "False"),
            ("if quota or needed > free else", "if True else"),
            ("if quota or needed > free else", "if needed > free else"),
            ("if _candidates(root) else what", "if True else what"),
            (f"{FAILED}        raise CheckpointError", "        raise CheckpointError"),
            (f"    {FAILED}            raise\n", "            raise\n"),
            ("if isinstance(error, ProcessLost) or not", "if not"),
            ("isinstance(error, ProcessLost) or not isinstance(error, Exception)", "isinstance(error, ProcessLost)"),
            ("            shutil.rmtree(leftover)\n", "            pass\n"),
            ("        write(new)\n", "        folder.mkdir()\n        write(folder)\n"),
            ("    sync(folder)\n", ""),
            ("        sync(path)\n    sync", "        pass\n    sync"),
            ("        folder.rename(old)\n", "        shutil.rmtree(folder)\n"),
            ("    if old.exists():\n        shutil.rmtree(old)\n", ""),
            ("not math.isfinite(score)", "False"),
            ("keep_last < 1 or", ""),
            ("skipped=tuple(skipped))", "skipped=())"),
            ("    if skipped:\n        raise", "    if False:\n        raise"),
            ("(OSError, SafetensorError)", "OSError"),
            (".cpu().contiguous()", ".cpu().float().contiguous()"),
        ]
    ),
    *(
        Mutation("training/adam.py", old, new, "training/test_optimizer_state.py")
        for old, new in [
            ("placed.clone()", "placed"),
            ("placed.clone()", "placed.bfloat16().to(placed.dtype)"),
            ("if _names(optimizer, parameters) != [", "if False and ["),
            ("    optimizer.state.clear()\n", ""),
            ('in saved.items() if key != "params"}', 'in saved.items() if key == "lr"}'),
            ("by_identity[i] for i in members", "by_identity[i] for i in sorted(members)"),
            ("!= by_identity.keys():", "< set():"),
            ("tuple(value) if", "value if"),
            ("for name, values in state.items():", "for name, values in ():"),
        ]
    ),
    *(
        Mutation(f"training/{file}.py", old, new, f"distributed/test_sharding.py::test_{test}")
        for file, old, new, test in [
            ("sharded_files", "rows.get(name) != math.prod(shape)", "False", "rows_that_are_missing_are_not_made_up"),
            ("sharded_files", "1 + end // FILE_BYTES", "1", "rows_that_are_missing_are_not_made_up"),
            (
                "sharded_files",
                "(error, OSError)",
                "(error, ())",
                "a_full_disk_of_one_rank_is_an_error_of_no_later_call",
            ),
            (
                "local_learner",
                "together(lambda: self._save(folder, writes=self._ranks.rank == 0), self._ranks)",
                "self._save(folder, writes=self._ranks.rank == 0)",
                "a_full_disk_where_weights_are_gathered_is_an_error_of_no_later_call",
            ),
        ]
    ),
]
