"""Reads reports in a process of its own: NVIDIA's reader is native code, and where it crashes only that process ends.

It did crash (ncu 2025.3.1's own reader, in a process that had loaded many other native libraries).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tachyon_tui.core.i18n import _, current_language, set_language
from tachyon_tui.core.profile import Report
from tachyon_tui.profilers.report import ReportError, read_report

DEADLINE_SECONDS = 120.0


def read_report_apart(path: Path, install: Path | None = None, ncu_version: tuple[int, ...] = ()) -> Report:
    """As `read_report`, safe against a crash of the native reader: then the other reader is tried, if there is one.

    :raises ReportError: the file cannot be used, or no reader survives it.
    """
    end = _run(path, install, ncu_version)
    if end is None and install is not None:
        end = _run(path, None, ncu_version)
    if end is None:
        raise ReportError(
            _("NVIDIA's report reader crashed on {file}.").format(file=path),
            _("Try another version of it: pip install -U ncu-report"),
        )
    if "error" in end:
        raise ReportError(*end["error"])
    return Report.model_validate(end["report"])


def _run(path: Path, install: Path | None, ncu_version: tuple[int, ...]) -> dict[str, Any] | None:
    """The reader's answer, None when it crashed or did not end in time; without ``install`` the wheel reads."""
    words = [str(path), str(install or ""), ".".join(map(str, ncu_version)), current_language()]
    child = subprocess.Popen(
        [sys.executable, "-m", "tachyon_tui.profilers.reader", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    with child:
        try:
            text, _errors = child.communicate(timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            child.kill()
    if child.returncode != 0:
        return None
    try:
        # Native code may have written to stdout too; the answer is the last line.
        answer: dict[str, Any] = json.loads(text.rpartition("\n")[2])
    except ValueError:
        return None
    return answer


def main() -> None:
    """``FILE INSTALL VERSION LANGUAGE``: print the report, or why it cannot be used, as JSON."""
    path, install, version, language = sys.argv[1:]
    set_language("zh" if language == "zh" else "en")
    number = tuple(int(part) for part in version.split(".") if part)
    try:
        report = read_report(path, Path(install) if install else None, number or None)
        answer: dict[str, Any] = {"report": report.model_dump(mode="json")}
    except ReportError as error:
        answer = {"error": [error.message, error.fix]}
    sys.stdout.write("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
