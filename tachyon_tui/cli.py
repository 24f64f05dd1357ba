"""The command line: parses and dispatches. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tachyon_tui import __version__
from tachyon_tui.core.i18n import _, language_from_locale, mark, set_language, translate
from tachyon_tui.frontends.commands import COMMANDS
from tachyon_tui.frontends.console import fail, project_root, show, user_errors, width

if TYPE_CHECKING:
    from tachyon_tui.core.session import SessionPaths
    from tachyon_tui.core.settings import Settings
    from tachyon_tui.frontends.follow import Reporter

FINISH_SECONDS = 30.0
"""How long a reader of our output may take for the last lines."""

KEYS = {
    "report": "report",
    "build": "build_cmd",
    "run": "run_cmd",
    "max_iterations": "max_iterations",
    "kernel": "target_kernel",
    "model": "llm.model",
    "provider": "llm.provider",
    "api_base": "llm.api_base",
    "max_cost": "llm.max_cost",
    "max_tokens": "llm.max_tokens",
    "export": "export",
    "lang": "lang",
    "profiler": "profiler",
    "ncu_set": "ncu.set",
    "ncu_metrics": "ncu.metrics",
    "ncu_args": "ncu.args",
    "timeout": "timeout",
    "branch": "git.branch",
    "ascii": "ui.ascii",
}
"""Which setting each option of `evolve` overrides, when it is given."""


def main() -> None:
    """Entry point of the `tachyon` command."""
    set_language(language_from_locale())
    _translate(tachyon)
    tachyon(prog_name="tachyon")


def _translate(command: click.Command) -> None:
    """Put the help texts into the interface language."""
    if command.help:
        command.help = translate(command.help)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.help:
            parameter.help = translate(parameter.help)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _translate(inner)


class _Evolve(click.Command):
    """Tells the program's words from ours: what stands after ``--`` is never looked at."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        tail = args[at + 1 :]
        try:
            rest = super().parse_args(ctx, _complete_resume(args[:at]))
        except click.NoSuchOption as error:
            ours = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
            near = difflib.get_close_matches(error.option_name, ours, n=1, cutoff=0.75)
            hint = " " + _("Did you mean {option}?").format(option=near[0]) if near else ""
            raise click.UsageError(
                _("{option} is no option of tachyon.").format(option=error.option_name)
                + hint
                + " "
                + _("Options of your program go after --, as in: tachyon evolve ./app -- {option}").format(
                    option=error.option_name
                ),
                ctx,
            ) from error
        if tail and ctx.params["executable"] in (None, tail[0]):
            ctx.params["executable"] = tail.pop(0)
        ctx.params["exe_args"] = (*ctx.params["exe_args"], *tail)
        if ctx.params["executable"] is None and ctx.params["resume"] is None:
            raise click.UsageError(_("Name the program to make faster: tachyon evolve ./app"), ctx)
        return rest


def _complete_resume(words: list[str]) -> list[str]:
    """``--resume`` without a session as ``--resume=``: a following option or program is no session."""
    done = []
    for word, after in zip(words, [*words[1:], "-"], strict=False):
        bare = after.startswith("-") or Path(after).is_file() or shutil.which(after) is not None
        done.append("--resume=" if word == "--resume" and bare else word)
    return done


class _Tachyon(click.Group):
    """Ends with 130 and without a traceback where Ctrl-C strikes before or after the session takes it itself."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail(_("Interrupted."), code=130)


@click.group(cls=_Tachyon)
@click.version_option(__version__, prog_name="tachyon")
def tachyon() -> None:
    pass


tachyon.help = mark("An LLM agent makes a CUDA kernel faster, round after round, while you watch and decide.")

_positive = click.FloatRange(min=0, min_open=True)
_count = click.IntRange(min=1)


@tachyon.command(
    cls=_Evolve,
    help=mark("Make EXECUTABLE faster. All words after -- go to the program, also those with dashes."),
)
@click.option(
    "--report",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=mark("An .ncu-rep file as the diagnosis of the baseline; times are measured afresh."),
)
@click.option("--build", metavar="CMD", help=mark('Build command, e.g. "make -j8".'))
@click.option("--run", metavar="CMD", help=mark("Run command; EXECUTABLE with its arguments by default."))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=mark("Settings file instead of .tachyon/evolve.toml."),
)
@click.option("--max-iterations", type=_count, metavar="N", help=mark("At most so many rounds (10)."))
@click.option(
    "--kernel", "-k", metavar="TEXT", help=mark("Target kernels: part of the demangled name (all).")
)
@click.option("--model", "-m", metavar="NAME", help=mark("Name of the model."))
@click.option(
    "--provider", "-p", metavar="NAME", help=mark("openai, anthropic, or another that LiteLLM knows.")
)
@click.option("--api-base", metavar="URL", help=mark("A local or gateway endpoint."))
@click.option(
    "--interactive", "-i", is_flag=True, help=mark("Pause between rounds, review before an acceptance.")
)
@click.option("--verbose", "-v", is_flag=True, help=mark("Tool calls and debug information."))
@click.option("--quiet", "-q", is_flag=True, help=mark("Only the final summary."))
@click.option("--plain", is_flag=True, help=mark("Lines of text, also in a terminal."))
@click.option("--json", "as_json", is_flag=True, help=mark("Events as JSON lines."))
@click.option("--export", type=click.Path(dir_okay=False), metavar="FILE", help=mark("Results as Markdown."))
@click.option(
    "--lang", type=click.Choice(["en", "zh"]), help=mark("Language of interface and agent (locale).")
)
@click.option(
    "--ncu-set",
    type=click.Choice(["basic", "detailed", "full"]),
    help=mark("Sections of a diagnosis (full)."),
)
@click.option("--ncu-metrics", metavar="A,B", help=mark("Extra metrics, separated by commas."))
@click.option("--ncu-args", metavar="ARGS", help=mark("Extra ncu arguments, in every run of ncu."))
@click.option("--timeout", type=_positive, metavar="SECONDS", help=mark("For the whole session (3600)."))
@click.option(
    "--profiler",
    type=click.Choice(["gpu", "stopwatch"]),
    help=mark("stopwatch needs no GPU; a program can fool it (gpu)."),
)
@click.option("--max-cost", type=_positive, metavar="USD", help=mark("End when the model has cost so much."))
@click.option(
    "--max-tokens", type=_count, metavar="N", help=mark("End when the model has used so many tokens.")
)
@click.option("--branch", metavar="NAME", help=mark("Commit to this branch instead of the current one."))
@click.option("--resume", metavar="[SESSION]", help=mark("Not in this version yet."))
@click.option("--ascii", is_flag=True, help=mark("No symbols beyond ASCII."))
@click.argument("executable", required=False, metavar="EXECUTABLE")
@click.argument("exe_args", nargs=-1, metavar="[EXE_ARGS]...")
def evolve(**given: Any) -> None:
    from tachyon_tui.core.session import find_root
    from tachyon_tui.core.settings import load_settings

    _check_usage(given)
    cwd = Path.cwd()
    root = find_root(cwd)
    with user_errors():
        settings = load_settings(root or cwd, options=_options(given, cwd), config=given["config"])
        set_language(settings.lang or language_from_locale())
        code = _evolve(settings, given, cwd, root)
    raise SystemExit(code)


def _check_usage(given: dict[str, Any]) -> None:
    if sum(given[name] for name in ("quiet", "as_json", "plain")) > 1:
        raise click.UsageError(_("--quiet, --json and --plain exclude each other: choose one."))
    if given["run"] is not None and given["exe_args"]:
        raise click.UsageError(_("--run holds the whole command: put the arguments of the program into it."))
    if given["interactive"] and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(_("--interactive needs a terminal: leave it out, or start it in one."))
    if given["ncu_args"]:
        from tachyon_tui.profilers.ncu import check_extra_args

        try:
            problem = check_extra_args(shlex.split(given["ncu_args"]))
        except ValueError as error:
            problem = _("--ncu-args cannot be split into words ({why}).").format(why=error)
        if problem:
            raise click.UsageError(problem)


def _options(given: dict[str, Any], cwd: Path) -> dict[str, Any]:
    """What was given on the command line, by the keys of the settings; files are meant from ``cwd``."""
    options = {
        key: given[name] for name, key in KEYS.items() if given[name] is not None and given[name] is not False
    }
    for key in ("report", "export"):
        if options.get(key):
            options[key] = str(cwd / options[key])
    if "ncu.metrics" in options:
        options["ncu.metrics"] = tuple(
            name.strip() for name in options["ncu.metrics"].split(",") if name.strip()
        )
    if given["exe_args"]:
        options["run_cmd"] = ""
    return options


def _evolve(settings: Settings, given: dict[str, Any], cwd: Path, root: Path | None) -> int:
    """Run the session here and report it from a thread; returns the exit code."""
    from tachyon_tui.engine.start import Request, start_session
    from tachyon_tui.frontends.follow import ReporterThread, last_finish

    session = start_session(
        Request(
            settings=settings,
            executable=given["executable"] or "",
            exe_args=given["exe_args"],
            cwd=cwd,
            root=root,
            attended=given["interactive"],
            interactive=given["interactive"],
            resume=given["resume"],
            verbose=given["verbose"],
        )
    )
    paths: SessionPaths = session.paths
    reporter = ReporterThread(paths, _reporter(settings, given), after=last_finish(paths))
    reporter.start()
    code = 1
    try:
        code = int(session.run())
        if settings.export and code != 2:
            failed = _write_export(paths, (root or cwd) / settings.export)
            code = code or failed
    finally:
        if not paths.journal.exists():
            click.echo(
                _(
                    "The session directory {folder} is gone, so nothing more can be shown. "
                    "The source is as last accepted; start again with the same command."
                ).format(folder=paths.folder),
                err=True,
            )
        if not reporter.finish(FINISH_SECONDS):
            os._exit(code)  # nobody reads our output, and Python would wait for the thread that writes it
    return code


def _reporter(settings: Settings, given: dict[str, Any]) -> Reporter:
    from tachyon_tui.frontends.jsonl import JsonReporter
    from tachyon_tui.frontends.plain import PlainReporter
    from tachyon_tui.frontends.quiet import QuietReporter

    if given["as_json"]:
        return JsonReporter(sys.stdout, sys.stderr)
    if given["quiet"]:
        return QuietReporter(sys.stdout, sys.stderr, ascii=settings.ui.ascii)
    return PlainReporter(
        sys.stdout, sys.stderr, verbose=given["verbose"], ascii=settings.ui.ascii, width=width()
    )


def _write_export(paths: SessionPaths, file: Path) -> int:
    """Write the Markdown export; 1 with a message when that is not possible."""
    from tachyon_tui.core.session import SessionError
    from tachyon_tui.frontends.markdown import write_export
    from tachyon_tui.frontends.text import LineWriter

    try:
        write_export(paths, file)
    except (OSError, SessionError) as error:
        line = _("The export {file} cannot be written: {why}. Try: tachyon export {session} -o FILE")
        LineWriter(sys.stderr).line(line.format(file=file, why=error, session=paths.id))
        return 1
    return 0


@tachyon.command(help=mark("Show what an .ncu-rep file says; needs neither GPU nor ncu."))
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help=mark("As one JSON document."))
@click.option(
    "--kernel", "-k", default="", metavar="TEXT", help=mark("Only kernels with this in their name.")
)
def report(file: str, as_json: bool, kernel: str) -> None:
    from tachyon_tui.frontends.report import report_json, report_text, select
    from tachyon_tui.profilers.report import ReportError, local_install, read_report

    try:
        whole = read_report(file, local_install())
    except ReportError as error:
        fail(error.message, error.fix)
    chosen = select(whole, kernel)
    if not chosen.kernels:
        names = ", ".join(dict.fromkeys(k.function or k.name for k in whole.kernels))
        fail(
            _("No kernel has {text!r} in its name.").format(text=kernel),
            _("There are: {names}.").format(names=names),
        )
    show(report_json(chosen) if as_json else report_text(chosen, width()))


@tachyon.command(help=mark("Write the results of a session (the latest) as Markdown."))
@click.argument("session", required=False, default="")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help=mark("A file, not stdout.")
)
def export(session: str, output: Path | None) -> None:
    from tachyon_tui.core.session import find_session
    from tachyon_tui.frontends.markdown import export as markdown

    with user_errors():
        paths = find_session(project_root(), session)
        if output is None:
            show(markdown(paths).rstrip("\n"))
        elif _write_export(paths, output):
            raise SystemExit(1)


@tachyon.command(help=mark("List the sessions of this project."))
def sessions() -> None:
    from tachyon_tui.core.session import list_sessions
    from tachyon_tui.frontends.sessions import sessions_table

    found = list_sessions(project_root())
    if not found:
        fail(
            _("There is no session in {root} yet.").format(root=project_root()),
            _("Start one with: tachyon evolve ./app"),
        )
    show("\n".join(sessions_table(found)))


@tachyon.command(help=mark("Follow a session (the latest) until it ends; Ctrl-C only detaches."))
@click.argument("session", required=False, default="")
@click.option("--verbose", "-v", is_flag=True, help=mark("Tool calls and debug information."))
@click.option("--ascii", is_flag=True, help=mark("No symbols beyond ASCII."))
def attach(session: str, verbose: bool, ascii: bool) -> None:  # noqa: A002
    from tachyon_tui.core.session import find_session
    from tachyon_tui.frontends.follow import ReporterThread
    from tachyon_tui.frontends.plain import PlainReporter
    from tachyon_tui.frontends.sessions import running
    from tachyon_tui.frontends.text import LineWriter

    with user_errors():
        paths = find_session(project_root(), session)
    plain = PlainReporter(sys.stdout, sys.stderr, verbose=verbose, ascii=ascii, width=width())
    reporter = ReporterThread(paths, plain)
    reporter.start()
    code = 0
    try:
        while running(paths) and not reporter.wait(0.5):
            pass
        done = reporter.finish(FINISH_SECONDS)
        if done and reporter.view.finished is None:
            fail(
                _("The session was broken off."),
                _("Accepted commits stay. See what was tried: tachyon export {session}").format(
                    session=paths.id
                ),
            )
        if reporter.view.finished is not None:
            code = reporter.view.finished.exit_code
    except KeyboardInterrupt:
        done = reporter.finish(1.0)
        LineWriter(sys.stderr).line(_("Detached; the session goes on. Come back with: tachyon attach"))
    if not done:
        os._exit(code)  # as in _evolve
    raise SystemExit(code)


for _command in COMMANDS:
    tachyon.add_command(_command)
