"""The lines that a terminal and a script see."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from support import (
    BASE_MS,
    Closed,
    calibrated,
    finished,
    guide_session,
    measured,
    remeasured,
    report,
    round_finished,
    started,
)

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import set_language
from tachyon_tui.core.profile import Floor, FloorTerm, HotLine, KernelProfile, Metric
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.frontends.plain import PlainReporter


@pytest.fixture
def chinese() -> Iterator[None]:
    set_language("zh")
    yield
    set_language("en")


def printed(events: list[Any], **options: Any) -> tuple[str, str]:
    """stdout and stderr of a plain reporter."""
    out, err = io.StringIO(), io.StringIO()
    report(PlainReporter(out, err, **options), events)
    return out.getvalue(), err.getvalue()


GUIDE = """\
#0 ↩ ROLLED_BACK  Rejected: GPU time +0.0% - 110.48ms (base: 110.47ms, -0.0%)
  Reason: no gain
  Optimization: first try
#1 ✓ SUCCESS  Accepted: GPU time -97.8% - 2.43ms (base: 110.47ms, +97.8%)
  Optimization: tree
#2 ✗ FAILED  compile_kernel was not called.
#3 ↩ ROLLED_BACK  Binary crashed (exit code 1).
#4 ↩ ROLLED_BACK  Rejected: GPU time +4.5% - 2.54ms (base: 110.47ms, +97.7%)
  Reason: no gain
#5 ✓ SUCCESS  Accepted: GPU time -5.9% (total: 97.9%) - 2.28ms (base: 110.47ms, +97.9%)
#6 ✓ SUCCESS  Accepted: GPU time -4.4% (total: 98.0%) - 2.18ms (base: 110.47ms, +98.0%)
Final re-measurement: 110.47ms -> 2.18ms, +98.03% (95% interval +98.01% to +98.05%, 5 pairs)
────────── Optimisation finished (+98.0%) ──────────
  Best: iter 6  |  GPU: 110.47ms -> 2.18ms  |  Success: 3, Failed: 7
"""


def test_the_guides_log() -> None:
    out, err = printed(guide_session())
    assert out == GUIDE
    assert "Baseline 110.47ms: noise 0.12%, gains below 1.4% may be missed (cupti, 5 runs)" in err
    assert "Checked in every run: 12 numbers and 4 words of stdout" in err
    assert "Ended: round limit reached" in err


def test_ascii() -> None:
    out, err = printed(guide_session(), ascii=True)
    assert out.isascii()
    assert "#0 < ROLLED_BACK  Rejected" in out
    assert "#1 + SUCCESS  Accepted" in out
    assert "#2 x FAILED" in out
    assert "---------- Optimisation finished (+98.0%) ----------" in out
    assert err.isascii()


@pytest.mark.usefixtures("chinese")
def test_chinese_keeps_the_format() -> None:
    out, _err = printed(guide_session())
    assert "────────── 优化完成 (+98.0%) ──────────" in out
    assert out.splitlines()[-1] == GUIDE.splitlines()[-1]
    assert "#5 ✓ SUCCESS  Accepted: GPU time -5.9% (total: 97.9%) - 2.28ms (base: 110.47ms, +97.9%)" in out


def test_total_is_not_shown_when_the_earlier_acceptance_was_taken_back() -> None:
    out, _err = printed(
        [
            e.RoundStarted(round=0),
            measured(0, S.SUCCESS, 50.0, -54.7, 54.7),
            e.Reverted(rounds=(0,), best_ms=BASE_MS),
            e.RoundStarted(round=1),
            measured(1, S.SUCCESS, 55.2, -50.0, 50.0),
        ]
    )
    assert "total" not in out


def test_the_summary_of_the_agent_is_short_and_harmless() -> None:
    text = "I used smem[tid].\n\x1b[31mThen\u202e more " + "words and 归约 " * 200
    out, _err = printed(
        [e.RoundStarted(round=0), round_finished(0, S.FAILED, reason="x", summary=text)], width=60
    )
    lines = out.splitlines()[1:]
    assert lines[0].startswith("  Optimization: I used smem[tid]. Then more words")
    assert 2 < len(lines) < 9
    assert all(line.startswith("  ") and cell_len(line) <= 60 for line in lines)
    assert lines[-1].endswith("…")
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_the_reason_stays_on_one_line() -> None:
    out, _err = printed([round_finished(0, S.FAILED, reason="a.cu:3: error\n  x[0]\x1b]0;hi\x07")])
    assert out == "#0 ✗ FAILED  a.cu:3: error x[0]]0;hi\n"


def test_a_failed_preflight_is_one_message_with_its_fix() -> None:
    out, err = printed(
        [
            started(),
            e.PreflightCheck(name="git", status="ok", message="clean"),
            e.PreflightCheck(name="disk", status="warning", message="2 GiB left", fix="Free some."),
            e.PreflightCheck(
                name="ncu", status="failed", message="Not found.", fix="Install Nsight Compute."
            ),
            finished(exit_code=2, reason="ncu: not found", fix="Install Nsight Compute.", base_ms=None),
        ]
    )
    assert out == ""
    assert err.count("Install Nsight Compute.") == 1
    assert err.splitlines()[-2:] == ["✗ ncu  Not found.", "  Fix: Install Nsight Compute."]
    assert "✓ git  clean" in err
    assert "! disk  2 GiB left\n  Fix: Free some." in err


def test_an_error_before_the_first_round_has_no_banner() -> None:
    out, err = printed(
        [
            started(),
            calibrated(),
            finished(exit_code=1, reason="The key was refused.", fix="Set OPENAI_API_KEY."),
        ]
    )
    assert out == ""
    assert err.endswith("Ended with an error: The key was refused.\n  Fix: Set OPENAI_API_KEY.\n")


def test_an_error_after_rounds_has_both() -> None:
    out, err = printed(
        [
            *guide_session()[:-2],
            finished(exit_code=1, reason="HEAD moved.", fix="Look at git log.", confirmed=None),
        ]
    )
    assert "Ended with an error: HEAD moved.\n  Fix: Look at git log." in err
    assert "No final re-measurement (HEAD moved.)." in out
    assert out.endswith("Failed: 7\n")


def test_an_interrupt_before_anything() -> None:
    out, err = printed([started(), finished(exit_code=130, reason="interrupted", base_ms=None)])
    assert out == ""
    assert "Interrupted before the first round" in err


@pytest.mark.parametrize(
    ("changes", "rounds", "said"),
    [
        ({"exit_code": 3}, False, "No final re-measurement: no round was accepted."),
        ({"exit_code": 130}, True, "No final re-measurement: the session was interrupted."),
        ({"exit_code": 0, "reason": "timeout"}, True, "No final re-measurement (timeout)."),
    ],
)
def test_no_final_measurement_is_said_with_its_reason(
    changes: dict[str, Any], rounds: bool, said: str
) -> None:
    events = guide_session()[: -2 if rounds else 2]
    out, _err = printed([*events, finished(confirmed=None, **changes)])
    assert said in out


def test_not_confirmed_names_the_commits_that_stay() -> None:
    events = guide_session()[:-2]
    out, _err = printed(
        [
            *events,
            remeasured(gain_percent=0.1, low_percent=-0.2, high_percent=0.4, confirmed=False),
            finished(exit_code=3, confirmed=False, gain_percent=0.1),
        ]
    )
    assert "+0.10% (95% interval -0.20% to +0.40%, 5 pairs)" in out
    assert (
        f"Not confirmed: the interval contains 0. The commits stay: {'a' * 12}, {'b' * 12}, {'c' * 12}."
        in out
    )
    assert "finished (+0.1%)" in out


def test_no_improvement() -> None:
    out, _err = printed(
        [
            started(),
            calibrated(),
            finished(
                exit_code=3,
                best_round=None,
                best_ms=None,
                gain_percent=None,
                confirmed=None,
                succeeded=0,
                failed=4,
            ),
        ]
    )
    assert out.splitlines()[-2:] == [
        "────────── Optimisation finished (+0.0%) ──────────",
        "  Best: none  |  GPU: 110.47ms -> 110.47ms  |  Success: 0, Failed: 4",
    ]


def kernel() -> KernelProfile:
    return KernelProfile(
        name="reduce_kernel(float const*)",
        function="reduce_kernel",
        metrics={
            "dram_percent": Metric(key="dram_percent", label="DRAM", value=0.142),
            "occupancy_percent": Metric(key="occupancy_percent", label="occupancy", value=12.69),
            "compute_percent": Metric(key="compute_percent", label="compute"),
        },
        hot_lines=(
            HotLine(file="/src/reduce.cu", line=10, percent=87.0),
            HotLine(file="/src/reduce.cu", line=8, percent=9.8),
        ),
        floor=Floor(ms=0.113, binding="memory", terms=(FloorTerm(name="memory", ms=0.113, basis="x"),)),
    )


def test_the_diagnosis_of_the_baseline_in_short() -> None:
    _out, err = printed([e.Diagnosed(who="baseline", status="ok", kernels=(kernel(),))])
    assert err.splitlines() == [
        "reduce_kernel: DRAM 0.1%, occupancy 12.7%",
        "  hot lines: reduce.cu:10 87.0%, reduce.cu:8 9.8%",
        "  floor: 0.1130ms (memory bound)",
    ]


def test_a_diagnosis_that_could_not_be_made_says_what_to_do() -> None:
    _out, err = printed(
        [e.Diagnosed(who="baseline", status="permission", message="No counters.", fix="Run as root.")]
    )
    assert err == "No counters.\n  Fix: Run as root.\n"


SAID = [
    (e.HintChanged(hint="h", text="use [warps]", status="queued"), "Hint queued: use [warps]"),
    (e.HintChanged(hint="h", text="use [warps]", status="delivered"), "Hint delivered: use [warps]"),
    (e.Notice(level="warning", message="GPU throttled.", fix="Cool it."), "GPU throttled.\n  Fix: Cool it."),
    (
        e.ControlChanged(running="paused", review=False, why="key p"),
        "Paused (key p). Go on with: tachyon continue",
    ),
    (e.ReviewRequested(round=3, candidate="3-1", why="review is on"), "tachyon accept --candidate 3-1"),
    (e.ReviewRequested(round=3, candidate="3-1", why="review is on"), "tachyon revert"),
    (e.Reverted(rounds=(3, 4), best_ms=2.0), "Taken back: #3, #4. Best is now 2.00ms."),
    (
        e.Retrying(attempt=2, wait_seconds=12.0, why="429"),
        "The model did not answer (429); asked again in 12s",
    ),
    (e.CommandAnswered(command="c", kind="revert", ok=False, message="Add --yes."), "revert: Add --yes."),
    (calibrated(exit_code_alone=True), "Checked in every run: the exit code alone."),
]


@pytest.mark.parametrize(("event", "text"), SAID)
def test_what_is_said_on_stderr(event: Any, text: str) -> None:
    out, err = printed([event])
    assert text in err
    assert out == ""


VERBOSE = [
    (e.StateChanged(round=1, before=S.EDITING, after=S.COMPILING), "#1 EDITING -> COMPILING"),
    (
        e.ToolCalled(round=1, call="c", tool="edit_source_file", arguments='{"path": "a.cu"}'),
        '#1 edit_source_file {"path": "a.cu"}',
    ),
    (
        e.ToolFinished(round=1, call="c", tool="edit_source_file", ok=True, text="one\ntwo", seconds=0.1),
        "#1 ✓ edit_source_file 0.1s\n    one\n    two",
    ),
    (e.BuildFinished(round=1, attempt=1, ok=True, exit_code=0, seconds=4.0), "✓ build passed in 4.0s"),
    (
        e.BuildFinished(round=1, attempt=1, ok=False, exit_code=2, seconds=4.0, tail="a.cu(3): error"),
        "✗ build failed with exit code 2 after 4.0s\n    a.cu(3): error",
    ),
    (
        e.RunFinished(
            round=1, who="candidate", ok=True, exit_code=0, seconds=1.0, ms=2.5, cold=True, marks=("hot",)
        ),
        "✓ run of candidate: 2.50ms, cold, hot",
    ),
    (
        e.RunFinished(round=1, who="candidate", ok=False, exit_code=1, seconds=1.0, message="wrong"),
        "✗ run of candidate failed with exit code 1\n    wrong",
    ),
    (e.Notice(level="debug", message="details"), "details"),
    (
        e.Verdict(round=1, accepted=False, kind="no gain", reason="+0.1%", runs=3),
        "#1 no gain: +0.1% (3 runs)",
    ),
]


@pytest.mark.parametrize(("event", "text"), VERBOSE)
def test_what_only_verbose_says(event: Any, text: str) -> None:
    assert printed([event]) == ("", "")
    out, err = printed([event], verbose=True)
    assert text in err
    assert out == ""


def test_a_long_result_is_cut_in_the_middle() -> None:
    text = "\n".join(f"line {n}" for n in range(100))
    _out, err = printed([e.ToolFinished(round=0, call="c", tool="t", ok=True, text=text)], verbose=True)
    assert "line 0" in err
    assert "line 99" in err
    assert "(88 lines left out)" in err
    assert len(err.splitlines()) == 14


def test_going_on_is_said_only_after_a_pause() -> None:
    _out, err = printed([e.ControlChanged(running="running", review=True)])
    assert err == ""
    _out, err = printed(
        [e.ControlChanged(running="paused", review=False), e.ControlChanged(running="running", review=False)]
    )
    assert err.endswith("Going on.\n")


def test_a_closed_stdout_does_not_end_the_session(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "pipe", os.O_CREAT | os.O_WRONLY)
    err = io.StringIO()
    view = report(PlainReporter(Closed(descriptor), err), guide_session())
    os.close(descriptor)
    assert view.finished is not None
    assert "Ended: round limit reached" in err.getvalue()
