"""`python -m posttrain` is the command line."""

import sys

from posttrain.cli import main

sys.exit(main())
