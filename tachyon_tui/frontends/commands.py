"""The commands that speak to a running session from another shell."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from tachyon_tui.core.i18n import _, mark
from tachyon_tui.frontends.console import project_root, user_errors

HINT_LIMIT = 8000
"""Characters of a hint, as `core.commands.Steer` has it."""

_session = click.option(
    "--session", default="", metavar="ID", help=mark("The session meant (the latest running).")
)


def _send(command: Any, session: str) -> NoReturn:
    """Hand a command to the running session and say what became of it."""
    from tachyon_tui.frontends.remote import running_session, send
    from tachyon_tui.frontends.text import LineWriter, clean

    with user_errors():
        answer = send(running_session(project_root(), session), command)
    writer = LineWriter(sys.stdout if answer.ok else sys.stderr)
    writer.line(clean(answer.message) or (_("Done.") if answer.ok else _("Refused.")))
    raise SystemExit(0 if answer.ok else 1)


@click.command(help=mark("Give the agent of a running session a hint."))
@click.argument("text", nargs=-1, required=True)
@_session
def steer(text: tuple[str, ...], session: str) -> None:
    from tachyon_tui.core.commands import Steer
    from tachyon_tui.frontends.text import clean

    hint = clean(" ".join(text), limit=2 * HINT_LIMIT).strip()
    if not 0 < len(hint) <= HINT_LIMIT:
        raise click.UsageError(_("A hint has 1 to 8000 characters."))
    _send(Steer(text=hint), session)


@click.command(help=mark("Hold before the next tool call or run."))
@_session
def pause(session: str) -> None:
    from tachyon_tui.core.commands import Pause

    _send(Pause(), session)


@click.command("continue", help=mark("Go on after a pause."))
@_session
def continue_(session: str) -> None:
    from tachyon_tui.core.commands import Continue

    _send(Continue(), session)


@click.command(help=mark("Let one tool call through, then hold again."))
@_session
def step(session: str) -> None:
    from tachyon_tui.core.commands import Step

    _send(Step(), session)


@click.command(help=mark("End this round and roll it back."))
@_session
def skip(session: str) -> None:
    from tachyon_tui.core.commands import Skip

    _send(Skip(), session)


@click.command(help=mark("End the session."))
@click.option("--after-round", is_flag=True, help=mark("Not now, but when this round is over."))
@_session
def stop(after_round: bool, session: str) -> None:
    from tachyon_tui.core.commands import Stop

    _send(Stop(after_round=after_round), session)


@click.command(help=mark("Decide yourself on every candidate that would be accepted, or no longer."))
@click.argument("switch", type=click.Choice(["on", "off"]))
@_session
def review(switch: str, session: str) -> None:
    from tachyon_tui.core.commands import Review

    _send(Review(on=switch == "on"), session)


@click.command(help=mark("Accept the candidate that waits for a decision."))
@click.option("--candidate", default="", metavar="ID", help=mark("Only if it is still this one that waits."))
@_session
def accept(candidate: str, session: str) -> None:
    from tachyon_tui.core.commands import Accept

    _send(Accept(candidate=candidate), session)


@click.command(help=mark("Turn down the waiting candidate, or take an accepted ROUND back."))
@click.argument("round_", type=click.IntRange(min=0), required=False, metavar="[ROUND]")
@click.option("--yes", is_flag=True, help=mark("Also take back the later rounds that stand on it."))
@_session
def revert(round_: int | None, yes: bool, session: str) -> None:
    from tachyon_tui.core.commands import Revert

    _send(Revert(round=round_, confirmed=yes), session)


COMMANDS = (steer, pause, continue_, step, skip, stop, review, accept, revert)
