"""Back up the annotation database; safe while the server runs.

    posttrain annotate backup
    posttrain annotate backup --store annotation.db --output /backups/annotation-monday.db

The copy has every judgement that was acknowledged before it began; a copy of the database file by other means lacks
those that are still in the log beside it. To restore, stop the server, remove annotation.db-wal and annotation.db-shm,
and put the copy in place of annotation.db. A PostgreSQL database is backed up by pg_dump.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from posttrain.annotation.store.backup import back_up
from posttrain.recipes.annotate.forms import Backup


@dataclass(frozen=True)
class BackupResult:
    """What was written."""

    path: Path
    judgements: int

    def lines(self) -> list[str]:
        """The same for people."""
        return [f"{self.judgements:,} judgements in {self.path}, integrity checked"]


def run(config: Backup) -> BackupResult:
    """Write the file; it is there when all of it is, or not at all."""
    name = f"{Path(config.store.rpartition('/')[2]).stem}-{datetime.now():%Y%m%d-%H%M%S}.db"
    path = Path(config.output or name).expanduser()
    return BackupResult(path, back_up(config.store, path))
