"""Where a session begins: what was asked for becomes a session directory and an engine."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tachyon_tui import __version__
from tachyon_tui.agents.base import Agent
from tachyon_tui.core.i18n import _, current_language
from tachyon_tui.core.session import EngineLock, SessionError, SessionPaths, create_session, sessions_folder
from tachyon_tui.core.settings import Settings

WORK_TREE_LOCK = "work-tree.lock"


@dataclass(frozen=True)
class Request:
    """What `tachyon evolve` was asked for."""

    settings: Settings
    executable: str
    exe_args: tuple[str, ...]
    cwd: Path
    root: Path | None
    """Top of the git work tree, None outside of one."""
    attended: bool = False
    """A person watches: what headless is rejected goes to review."""
    interactive: bool = False
    """Pause between rounds, review before accept."""
    resume: str | None = None
    verbose: bool = False


@dataclass(frozen=True)
class StartedSession:
    """A session whose directory exists; `run` plays it to its end."""

    paths: SessionPaths
    run: Callable[[], int]
    """Blocks until the session ends and returns the exit code; to be called in the main thread."""


def start_session(request: Request, agent: Agent | None = None) -> StartedSession:
    """Make the session directory and take the work tree's lock; raises `SessionError`.

    ``agent`` stands in for the model that the settings name.
    """
    if request.root is None:
        raise SessionError(
            _("{folder} is in no git repository.").format(folder=request.cwd),
            _(
                "Run `git init`, commit your source, and start again: git is what makes every edit revertible."
            ),
            exit_code=2,
        )
    if request.resume is not None:
        raise SessionError(
            _("This version cannot resume a session yet."),
            _("Start a new one: it begins at the last accepted commit."),
            exit_code=2,
        )
    root = request.root
    lock = EngineLock(sessions_folder(root) / WORK_TREE_LOCK)
    lock.acquire()
    try:
        paths = create_session(root, request.executable, describe(request))
        from tachyon_tui.engine.loop import Engine

        engine = Engine(request, root, paths, agent or _agent(request.settings), lock)
    except BaseException:
        lock.release()
        raise
    return StartedSession(paths, engine.run)


def describe(request: Request) -> dict[str, object]:
    """What `session.json` keeps: the resolved settings and the versions; never a key."""
    return {
        "tachyon": __version__,
        "python": platform.python_version(),
        "machine": platform.node(),
        "executable": request.executable,
        "exe_args": list(request.exe_args),
        "cwd": str(request.cwd),
        "root": str(request.root),
        "attended": request.attended,
        "interactive": request.interactive,
        "settings": request.settings.model_dump(mode="json"),
    }


def _agent(settings: Settings) -> Agent:
    from tachyon_tui.agents.llm import LlmAgent, LlmOptions

    return LlmAgent(
        LlmOptions(
            provider=settings.llm.provider,
            model=settings.llm.model,
            api_base=settings.llm.api_base,
            retries=settings.llm.retries,
            language=current_language(),
        )
    )
