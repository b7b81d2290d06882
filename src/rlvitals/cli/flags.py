"""The parser of every verb's flags. What it prints repeats what was typed, so it goes through the terminal's door."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rlvitals.terminal import put


class Parser(argparse.ArgumentParser):
    """argparse's own, whose help, usage and errors are harmless."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            put(message.removesuffix("\n"), file or sys.stderr)
