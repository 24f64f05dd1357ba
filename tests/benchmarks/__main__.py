"""Measures what is promised, one line a figure: ``python -m tests.benchmarks [NAME...]``.

Exit code 1 when a bound is not kept. None of it is a timed test: another load on the machine shows in the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from tests.benchmarks import journal, rounds, start_up, waiting
from tests.benchmarks.figure import Figure

BENCHMARKS: dict[str, Callable[[], Sequence[Figure]]] = {
    "help": start_up.help_text,
    "report": start_up.report,
    "append": journal.appended,
    "fold": journal.folded,
    "idle": journal.idle,
    "engine": rounds.engine,
    "wait": waiting.waiting,
    "memory": rounds.memory,
}


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks, or all."""
    unknown = sorted(set(names) - BENCHMARKS.keys())
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    kept = True
    for name in names or BENCHMARKS:
        for figure in BENCHMARKS[name]():
            print(figure.line(), flush=True)
            kept = kept and figure.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
