"""A FAKE agent that plays the same kinds of round again and again on tests/projects/fake_gpu, without any model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tachyon_tui.agents.base import Brief, Observer, Tools

BASE_NS = 411_600
"""Target time of the project as it is: 2000 + 8192 * (40 + 10), see fake_gpu.h."""
LINE = "    atomicAdd(&out[row], in[i]);\n"
SAVING = re.compile(r"    if \(i == 0\) fake_gpu::cost -= (\d+);\n")
Calls = Sequence[tuple[str, dict[str, str]]]


def gain(source: str, share: float) -> Calls:
    """An edit after which the kernel takes ``share`` less of its time (more, when negative)."""
    known = SAVING.search(source)
    saved = int(known[1]) if known else 0
    wanted = saved + round((BASE_NS - saved) * share)
    old = known[0] if known else LINE
    saving = f"    if (i == 0) fake_gpu::cost -= {max(wanted, 0)};\n"
    slower = f"    if (i == 0) fake_gpu::cost += {saved - wanted};\n" if wanted < saved else ""
    return [
        _edit(old, ("" if known else LINE) + (known[0] + slower if known and slower else slower or saving))
    ]


def _edit(old: str, new: str) -> tuple[str, dict[str, str]]:
    return "edit_source_file", {"path": "reduce.cu", "old_text": old, "new_text": new}


COMPILE: Calls = [("compile_kernel", {})]
MEASURE: Calls = [("compile_kernel", {}), ("run_benchmark", {}), ("reprofile", {}), ("compare_metrics", {})]


def broken_then_slower(source: str) -> Calls:
    """A build that fails, is mended, and brings a slower version."""
    broken = "    const size_t i = blockIdx.x"
    return [
        _edit(f"{broken};\n", f"{broken}\n"),
        *COMPILE,
        _edit(f"{broken}\n", f"{broken};\n"),
        *gain(source, -0.1),
        *MEASURE,
    ]


def comment(source: str) -> Calls:
    """An edit without effect."""
    return [_edit("// The slow baseline", "// The baseline"), *MEASURE]


@dataclass(frozen=True)
class Kind:
    """One kind of round."""

    name: str
    calls: Callable[[str], Calls]
    """From the source as it is."""
    accepted: bool = False


ROUNDS = (
    Kind("clear gain", lambda source: [*gain(source, 0.08), *MEASURE], accepted=True),
    Kind("clearly slower", lambda source: [*gain(source, -0.08), *MEASURE]),
    Kind("gain by pairs", lambda source: [*gain(source, 0.02), *MEASURE], accepted=True),
    Kind("broken, then slower", broken_then_slower),
    Kind("no effect", comment),
)


class FakeAgent:
    """Plays the kinds of round in turn."""

    def __init__(self, root: Path, at_round: Callable[[], None], kinds: Sequence[Kind]) -> None:
        self._root = root
        self._at_round = at_round
        self._kinds = kinds

    def check(self) -> None:
        """Never fails."""

    def play(self, brief: Brief, tools: Tools, observer: Observer) -> str:
        """One round."""
        self._at_round()
        tools.specs()
        source = (self._root / "reduce.cu").read_text("utf-8")
        calls = [("get_kernel_summary", {}), *self._kinds[brief.round % len(self._kinds)].calls(source)]
        for number, (name, arguments) in enumerate(calls):
            observer.check()
            observer.text(f"Step {number}: {name}. ")
            observer.usage(1000, 100, None)
            if tools.call(f"call_{number}", name, json.dumps(arguments)).round_over:
                break
        return "As planned."
