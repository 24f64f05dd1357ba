"""Every option once: one model, merged from the command line, the project's and the user's file, and defaults."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tachyon_tui.core.i18n import _

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT_FILE = ".tachyon/evolve.toml"
NcuSet = Literal["basic", "detailed", "full"]
SanitizerTool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]


class SettingsError(Exception):
    """A file or an option cannot be used; the message names file, line, key and the nearest known key."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class BuildSettings(_Section):
    timeout: float = Field(default=600, gt=0)
    """Seconds one build may take."""


class RunSettings(_Section):
    timeout: float = Field(default=120, gt=0)
    """Seconds one run of the program may take."""


class GitSettings(_Section):
    auto_commit: bool = True
    auto_rollback: bool = True
    allowed_edit_paths: tuple[str, ...] = ()
    """Files or folders (relative to the root) that narrow what the agent may edit; new files only below them."""
    branch: str = ""
    """Commits go to this branch instead of the current one."""


class NcuSettings(_Section):
    set: NcuSet = "full"
    metrics: tuple[str, ...] = ()
    args: str = ""
    """Extra ncu arguments, shell-split, in every ncu run."""
    timeout: float = Field(default=600, gt=0)
    path: str = ""


class LlmSettings(_Section):
    provider: str = ""
    model: str = ""
    api_base: str = ""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars for the session."""
    max_tokens: int | None = Field(default=None, gt=0)
    retries: int = Field(default=5, ge=0)
    max_tool_calls: int = Field(default=40, ge=1)
    max_builds: int = Field(default=5, ge=1)


class VerifySettings(_Section):
    stdout: Literal["learned", "exact", "off"] = "learned"
    ignore: tuple[str, ...] = ()
    """Regular expressions; what they match in the output is not checked."""
    rtol: float = Field(default=1e-4, ge=0)
    atol: float = Field(default=1e-8, ge=0)
    outputs: tuple[str, ...] = ()
    """Files the program writes: deleted before each run, compared after it."""
    command: str = ""
    """Must exit 0 after each run."""
    sanitizer: Literal["off", "final", "every"] = "off"
    sanitizer_tools: tuple[SanitizerTool, ...] = ("memcheck",)
    allow_host_edits: bool = False


class JudgeSettings(_Section):
    min_gain: float = Field(default=0.01, ge=0, lt=1)
    max_samples: int = Field(default=10, ge=4)
    alpha: float = Field(default=2e-4, gt=0, lt=0.5)
    per: Literal["run", "launch"] = "run"


class ConvergenceSettings(_Section):
    min_gain: float = Field(default=0.02, ge=0, lt=1)
    patience: int = Field(default=4, ge=0)
    """Measured rounds in a row without an acceptance that end the session; 0 = never."""


class FloorSettings(_Section):
    bytes: float | None = Field(default=None, gt=0)
    """Bytes that any correct version must move through device memory, per run of the program."""
    flops: float | None = Field(default=None, gt=0)
    stop: float = Field(default=0.10, ge=0)


class StopwatchSettings(_Section):
    pattern: str = ""


class SessionSettings(_Section):
    on_disconnect: Literal["continue", "pause", "stop"] = "continue"
    keep: int = Field(default=20, ge=1)


class HookSettings(_Section):
    on_finish: str = ""


class UiSettings(_Section):
    theme: str = ""
    ascii: bool = False
    mouse: bool = True


class Settings(_Section):
    """The resolved settings of one session."""

    build_cmd: str = ""
    run_cmd: str = ""
    target_kernel: str = ""
    max_iterations: int = Field(default=10, ge=1)
    allowed_edit_paths: tuple[str, ...] = ()
    report: str = ""
    export: str = ""
    timeout: float = Field(default=3600, gt=0)
    lang: Literal["", "en", "zh"] = ""
    profiler: Literal["gpu", "stopwatch"] = "gpu"
    build: BuildSettings = BuildSettings()
    run: RunSettings = RunSettings()
    git: GitSettings = GitSettings()
    ncu: NcuSettings = NcuSettings()
    llm: LlmSettings = LlmSettings()
    verify: VerifySettings = VerifySettings()
    judge: JudgeSettings = JudgeSettings()
    convergence: ConvergenceSettings = ConvergenceSettings()
    floor: FloorSettings = FloorSettings()
    stopwatch: StopwatchSettings = StopwatchSettings()
    session: SessionSettings = SessionSettings()
    hooks: HookSettings = HookSettings()
    ui: UiSettings = UiSettings()
    keys: dict[str, str] = {}

    @property
    def edit_paths(self) -> tuple[str, ...]:
        """Both spellings of the allowed paths together."""
        return tuple(dict.fromkeys((*self.allowed_edit_paths, *self.git.allowed_edit_paths)))


def user_file() -> Path:
    """The user's own settings file."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "tachyon" / "config.toml"


def load_settings(
    root: Path,
    *,
    options: Mapping[str, Any] | None = None,
    config: Path | None = None,
    user: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Merge defaults, the user's file, the project's file and ``options`` (dotted keys), later ones winning.

    ``options`` holds only what was given on the command line. ``config`` names another project file, which
    must exist. ``TACHYON_PROVIDER``, ``TACHYON_MODEL`` and ``TACHYON_API_BASE`` stand in where no file and
    no option names the model. Raises `SettingsError`.
    """
    merged: dict[str, Any] = {}
    own = user_file() if user is None else user
    if own.is_file():
        _merge(merged, read_file(own))
    project = config or root / PROJECT_FILE
    if config is not None and not config.is_file():
        raise SettingsError(_("{file} does not exist.").format(file=config))
    if project.is_file():
        _merge(merged, read_file(project))
    given = environment if environment is not None else os.environ
    llm = merged.setdefault("llm", {})
    for key in ("provider", "model", "api_base"):
        value = given.get(f"TACHYON_{key.upper()}", "")
        if value and not llm.get(key):
            llm[key] = value
    for dotted, value in (options or {}).items():
        _set(merged, dotted, value)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{key}: {first['msg']}") from error


def read_file(path: Path) -> dict[str, Any]:
    """The checked content of one settings file; raises `SettingsError` with file, line, key and nearest key."""
    try:
        text = path.read_text("utf-8")
        data: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(_("{file} cannot be read: {why}.").format(file=path, why=error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(_("{file} is not valid TOML: {why}.").format(file=path, why=error)) from error
    try:  # as JSON, because strict types then still take an array for a tuple
        Settings.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(path, text, item) for item in error.errors())) from error
    return data


def _explain(path: Path, text: str, item: Any) -> str:
    loc = [str(part) for part in item["loc"]]
    names = [part for part in loc if not part.isdigit()]
    place = f"{path}:{_line_of(text, names)}: {'.'.join(names)}"
    if item["type"] == "extra_forbidden":
        near = nearest_key(names)
        hint = _("did you mean `{near}`?").format(near=near) if near else _("there is no such key.")
        return _("{place}: unknown key, {hint}").format(place=place, hint=hint)
    return f"{place}: {item['msg']}"


def known_keys() -> list[str]:
    """All keys of the settings, dotted."""
    keys = []
    for name, field in Settings.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, _Section):
            keys += [f"{name}.{sub}" for sub in inner.model_fields]
        else:
            keys.append(name)
    return keys


def nearest_key(names: list[str]) -> str:
    """The known key closest to an unknown one, empty when nothing is close."""
    keys = known_keys()
    dotted = ".".join(names)
    same_leaf = [k for k in keys if k.split(".")[-1] == names[-1]]
    close = difflib.get_close_matches(dotted, keys, n=1, cutoff=0.6)
    leaves = {k.split(".")[-1]: k for k in keys}
    leaf = difflib.get_close_matches(names[-1], list(leaves), n=1, cutoff=0.7)
    return (same_leaf or close or [leaves[name] for name in leaf] or [""])[0]


def _line_of(text: str, names: list[str]) -> int:
    table: list[str] = []
    last = 1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header:
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == names:
                return number
            if table == names[: len(table)]:
                last = number
            continue
        key = re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", line)
        if key:
            parts = [*table, *(part.strip("\"'") for part in key[1].split("."))]
            if parts == names[: len(parts)]:
                return number
    return last


def _merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = dict(value) if isinstance(value, Mapping) else value


def _set(target: dict[str, Any], dotted: str, value: Any) -> None:
    *tables, leaf = dotted.split(".")
    for table in tables:
        target = target.setdefault(table, {})
    target[leaf] = value
