"""What is written is on the disk, or the error is raised; a file system that cannot sync a folder is none."""

import errno
import os

import pytest

from posttrain.durable import sync


def test_only_a_file_system_that_cannot_sync_is_forgiven(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync(tmp_path)
    assert synced == [tmp_path.stat().st_ino]
    for code in (errno.EINVAL, errno.ENOTSUP, errno.EIO):

        def fails(descriptor, code=code):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fails)
        if code != errno.EIO:
            sync(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        sync(tmp_path)
