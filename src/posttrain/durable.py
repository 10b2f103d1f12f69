"""What has been written outlives a power cut."""

import errno
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have the system write a file, or a folder's list of names, to the disk now.

    Some network file systems cannot sync a folder, and say so: that is no error.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
