"""What every command of the command line needs: where we are, how wide, and how to end with a message."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tachyon_tui.core.i18n import _


def fail(message: str, fix: str = "", code: int = 1) -> NoReturn:
    """Say on stderr what is wrong and what to do, then exit with ``code``."""
    from tachyon_tui.frontends.plain import with_fix
    from tachyon_tui.frontends.text import LineWriter, clean

    err = LineWriter(sys.stderr)
    for line in with_fix(clean(message), fix):
        err.line(line)
    raise SystemExit(code)


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn the errors that are the user's to mend into a message and an exit code."""
    from tachyon_tui.core.session import SessionError
    from tachyon_tui.core.settings import SettingsError

    try:
        yield
    except SessionError as error:
        fail(error.message, error.fix, error.exit_code)
    except SettingsError as error:
        fail(str(error), _("Correct the file or the option, then start again."), 2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        fail(
            _("A file cannot be used: {why}.").format(why=f"{error.strerror or error}{where}"),
            _("See that the disk is not full and that the folder can be written; then start again."),
        )


def project_root() -> Path:
    """The top of the git work tree we are in, else the current folder."""
    from tachyon_tui.core.session import find_root

    return find_root(Path.cwd()) or Path.cwd()


def show(text: str) -> None:
    """Print a result; a reader that went away is no error."""
    from tachyon_tui.frontends.text import LineWriter

    LineWriter(sys.stdout).line(text)


def width() -> int:
    """Cells of a readable line: the terminal's width, at most 120, and 100 where there is none."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)
