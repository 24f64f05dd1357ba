"""What the program as found shows here: its output, its kernels, its time with the noise, its diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import RunRecord
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.session import SessionPaths
from tachyon_tui.core.settings import JudgeSettings, Settings, VerifySettings
from tachyon_tui.core.units import ms_text, percent_text
from tachyon_tui.engine.bench import Bench, RunFailed, Sample
from tachyon_tui.engine.charge import CountsDiffer, learn_scope
from tachyon_tui.engine.checks import Checks, PreflightFailed
from tachyon_tui.engine.control import Control
from tachyon_tui.engine.diagnosis import Diagnosis, choose_launches
from tachyon_tui.engine.judge import Judge, Rule
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.engine.rounds import tick_share
from tachyon_tui.engine.site import Site
from tachyon_tui.profilers.base import ChildEnd, Diagnoser
from tachyon_tui.profilers.roofline import floor
from tachyon_tui.workspace.runner import run_child
from tachyon_tui.workspace.verify import Oracle

NOISY = 0.20
HOPELESS = ("permission", "driver", "unsupported_gpu", "ncu_missing")
"""After one of these no diagnosis of this session would come to anything."""


MOST_SAMPLES = 100
"""More runs a round than this are no advice."""


def calibrate(bench: Bench, control: Control, settings: Settings) -> list[Sample]:
    """The warm runs of the baseline; one cold run before them never counts. Teaches the bench what every run must
    print and which launches are the target's. Raises `PreflightFailed`."""
    samples: list[Sample] = []
    try:
        for index in range(1 + Rule().calibration):
            control.boundary()
            samples.append(bench.sample("A", "baseline", None, cold=index == 0))
    except RunFailed as failure:
        raise PreflightFailed(
            "run",
            _("run {number} of the calibration failed: {why}").format(
                number=len(samples) + 1, why=failure.reason
            ),
            _("The program must pass every time; a check that fails now and then decides nothing."),
        ) from failure
    if samples[-1].record.truncated and settings.judge.per == "run":
        raise PreflightFailed(
            "timer",
            _("The program launches more kernels than ncu can time in one run."),
            _('Judge the mean per launch: set `[judge] per = "launch"`.'),
        )
    if settings.verify.stdout != "off":
        bench.oracle = new_oracle(settings.verify, [sample.stdout for sample in samples])
    _learn_scope(bench, settings, [sample.record for sample in samples])
    return [replace(sample, charged=bench.scope.charge(sample.record)) for sample in samples[1:]]


def new_oracle(verify: VerifySettings, outputs: Sequence[str]) -> Oracle:
    """The oracle of these outputs; raises `Problem` for settings that it cannot use."""
    mode = "learned" if verify.stdout == "off" else verify.stdout
    return Oracle.learn(outputs, mode=mode, ignore=verify.ignore, rtol=verify.rtol, atol=verify.atol)


def _learn_scope(bench: Bench, settings: Settings, records: Sequence[RunRecord]) -> None:
    if settings.profiler == "stopwatch":
        return
    try:
        bench.scope = learn_scope(records, settings.target_kernel, settings.judge.per)
    except CountsDiffer as differ:
        raise PreflightFailed(
            "run",
            _(
                "The program launches its target kernels a different number of times in each run: {counts}."
            ).format(counts=", ".join(map(str, differ.counts))),
            _('Judge the mean per launch: set `[judge] per = "launch"`.'),
        ) from differ


def first_judge(settings: JudgeSettings, samples: Sequence[Sample]) -> Judge:
    """The judge of the session, calibrated with the warm runs."""
    rule = Rule(min_gain=settings.min_gain, alpha=settings.alpha, max_pairs=max(3, settings.max_samples - 1))
    times = [replace(s, ms=s.charged.ms) for s in samples]
    judge = Judge(rule, tick_share(times[-1], times[-1].ms))
    judge.calibrate([s.log for s in times])
    return judge


def _noise_advice(judge: Judge, instrument: str) -> str:
    """What makes smaller gains visible here."""
    words = [
        _("To see smaller gains: keep the machine free of other work and enlarge the problem.")
        if instrument == "stopwatch"
        else _("To see smaller gains: lock the clocks, enlarge the problem, free the GPU.")
    ]
    wanted = judge.samples_for_five_percent
    if judge.rule.max_pairs + 1 < wanted <= MOST_SAMPLES:
        words.append(
            _("With `[judge] max_samples = {samples}` gains of 5 % are seen.").format(samples=wanted)
        )
    return " ".join(words)


def announce(bench: Bench, judge: Judge, samples: Sequence[Sample], log: EventLog, checks: Checks) -> float:
    """Tell what was learned, and what cannot be seen at this noise; the baseline's time in ms."""
    times = sorted(s.charged.ms for s in samples)
    middle = times[len(times) // 2]
    oracle = bench.oracle
    noise, visible = judge.noise * 100, judge.visible * 100
    seen = _(
        "noise of this program here: {noise} a run ({runs} runs). Gains below {visible} may be missed."
    ).format(noise=percent_text(noise, digits=2), runs=len(times), visible=percent_text(visible))
    advice = _noise_advice(judge, samples[-1].record.instrument)
    log.write(
        e.Calibrated(
            who="baseline",
            ms=middle,
            samples_ms=tuple(s.charged.ms for s in samples),
            noise_percent=noise,
            visible_percent=visible,
            instrument=samples[-1].record.instrument,
            kernels=samples[-1].charged.kernels,
            oracle=oracle.describe() if oracle is not None else "",
            exit_code_alone=oracle is None or oracle.empty,
            message=f"{seen} {advice}" if judge.visible > 3 * judge.rule.min_gain else seen,
        )
    )
    if oracle is None or oracle.empty:
        checks.warn(
            "check",
            _("nothing stable is printed: candidates are checked by the exit code alone"),
            _("Let the program print a result, or set `[verify] outputs` or `[verify] command`."),
        )
    if judge.visible > NOISY:
        checks.warn("noise", seen, advice)
    return middle


def new_diagnosis(
    diagnoser: Diagnoser | None,
    settings: Settings,
    cwd: Path,
    paths: SessionPaths,
    control: Control,
    log: EventLog,
    ledger: Ledger,
) -> Diagnosis:
    """The diagnoses of the session; ncu runs in ``cwd`` and ends when the session is interrupted."""

    def run(argv: Sequence[str], env: Mapping[str, str], timeout: float, output: Path) -> ChildEnd:
        result = run_child(
            argv,
            cwd=cwd,
            env=dict(env),
            timeout=control.allowance(timeout),
            stdout=output,
            check=control.check,
        )
        return ChildEnd(result.exit_code, result.timed_out, result.seconds, result.tail)

    def with_floor(profile: KernelProfile) -> KernelProfile:
        given = settings.floor
        return profile.model_copy(update={"floor": floor(profile, given.bytes, given.flops)})

    return Diagnosis(diagnoser, log, ledger, paths.reports, run, with_floor)


def diagnose_baseline(site: Site, sample: Sample, checks: Checks) -> tuple[KernelProfile, ...]:
    """Profile the launches of ``sample`` that matter; empty where ncu cannot, as its event says."""
    if not site.diagnosis.available:
        return ()
    wanted = choose_launches(sample.record, site.bench.scope)
    outcome = site.diagnosis.diagnose(site.bench.run_argv, wanted, "baseline", None)
    if outcome is None:
        return ()
    if outcome.report is None:
        site.why_no_profile = outcome.message
        if outcome.status in HOPELESS:
            site.diagnosis.give_up()
        return ()
    profiles = site.diagnosis.with_floor(outcome.report.kernels)
    first = profiles[0]
    checks.ok(
        "ncu", _("profiled {name}, {ms} under ncu").format(name=first.name, ms=ms_text(first.gpu_time_ms))
    )
    return profiles
