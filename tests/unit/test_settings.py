"""Settings: what wins, and what is said of a wrong file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core.settings import (
    PROJECT_FILE,
    Settings,
    SettingsError,
    known_keys,
    load_settings,
    nearest_key,
    user_file,
)

GUIDE = """\
build_cmd = "make -j8"
run_cmd = "./build/my_app --size 4096"
target_kernel = "reduce_kernel"
max_iterations = 15

[build]
timeout = 300

[run]
timeout = 120

[git]
auto_commit = true
auto_rollback = true

allowed_edit_paths = ["src/kernels/"]
"""


def load(root: Path, project: str = "", user: str = "", **more: Any) -> Settings:
    """Settings of a project with these two files."""
    (root / ".tachyon").mkdir(exist_ok=True)
    (root / PROJECT_FILE).write_text(project, "utf-8")
    own = root / "user.toml"
    own.write_text(user, "utf-8")
    values: dict[str, Any] = {"user": own, "environment": {}}
    return load_settings(root, **(values | more))


def test_the_guides_file_works_verbatim(tmp_path: Path) -> None:
    settings = load(tmp_path, GUIDE)
    assert settings.build_cmd == "make -j8"
    assert settings.run_cmd == "./build/my_app --size 4096"
    assert settings.target_kernel == "reduce_kernel"
    assert settings.max_iterations == 15
    assert (settings.build.timeout, settings.run.timeout) == (300, 120)
    assert settings.git.auto_commit
    assert settings.git.auto_rollback
    assert settings.edit_paths == ("src/kernels/",)


def test_both_spellings_of_the_paths_count(tmp_path: Path) -> None:
    text = 'allowed_edit_paths = ["a/", "b/"]\n[git]\nallowed_edit_paths = ["b/", "c/"]\n'
    assert load(tmp_path, text).edit_paths == ("a/", "b/", "c/")


def test_defaults_of_the_contract(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.max_iterations == 10
    assert settings.timeout == 3600
    assert (settings.build.timeout, settings.run.timeout, settings.ncu.timeout) == (600, 120, 600)
    assert (settings.ncu.set, settings.profiler, settings.lang) == ("full", "gpu", "")
    assert (settings.llm.retries, settings.llm.max_tool_calls, settings.llm.max_builds) == (5, 40, 5)
    assert (settings.verify.stdout, settings.verify.rtol, settings.verify.atol) == ("learned", 1e-4, 1e-8)
    assert settings.verify.sanitizer == "off"
    assert not settings.verify.allow_host_edits
    judge = settings.judge
    assert (judge.min_gain, judge.max_samples, judge.alpha, judge.per) == (0.01, 10, 2e-4, "run")
    assert (settings.convergence.min_gain, settings.convergence.patience) == (0.02, 4)
    assert (settings.floor.stop, settings.session.on_disconnect, settings.session.keep) == (
        0.10,
        "continue",
        20,
    )
    assert settings.git.auto_commit
    assert settings.git.auto_rollback


def test_command_line_beats_project_beats_user_beats_default(tmp_path: Path) -> None:
    user = 'max_iterations = 3\nlang = "zh"\n[llm]\nmodel = "user"\nretries = 1\n'
    project = '[llm]\nmodel = "project"\nprovider = "p"\n'
    settings = load(tmp_path, project, user, options={"llm.provider": "cli", "max_iterations": 7})
    assert settings.llm.model == "project"
    assert settings.llm.retries == 1
    assert settings.llm.provider == "cli"
    assert settings.max_iterations == 7
    assert settings.lang == "zh"


def test_what_is_not_given_overrides_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, GUIDE, options={}).max_iterations == 15


@pytest.mark.parametrize(
    ("project", "options", "model"),
    [
        ("", {}, "from-env"),
        ('[llm]\nmodel = "file"\n', {}, "file"),
        ("", {"llm.model": "cli"}, "cli"),
    ],
)
def test_the_environment_stands_in_for_the_model(
    tmp_path: Path, project: str, options: dict[str, str], model: str
) -> None:
    environment = {"TACHYON_MODEL": "from-env", "TACHYON_PROVIDER": ""}
    assert load(tmp_path, project, options=options, environment=environment).llm.model == model


def test_a_named_file_replaces_the_projects(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("max_iterations = 2\n", "utf-8")
    settings = load(tmp_path, GUIDE, config=other)
    assert (settings.max_iterations, settings.build_cmd) == (2, "")
    with pytest.raises(SettingsError, match=r"nowhere\.toml does not exist"):
        load(tmp_path, GUIDE, config=tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "line", "key", "near"),
    [
        ("max_iteration = 5\n", 1, "max_iteration", "max_iterations"),
        ("\n\n[build]\n# why\ntimout = 5\n", 5, "build.timout", "build.timeout"),
        ("[llm]\nmodel = 'm'\nmax_costs = 3\n", 3, "llm.max_costs", "llm.max_cost"),
        ("[git]\nmin_gain = 0.1\n", 2, "git.min_gain", "min_gain"),
        ("build.timeot = 3\n", 1, "build.timeot", "build.timeout"),
        ("[verfy]\nrtol = 1e-3\n", 1, "verfy", ""),
    ],
)
def test_an_unknown_key_is_named_with_its_place(
    tmp_path: Path, text: str, line: int, key: str, near: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert f"{tmp_path / PROJECT_FILE}:{line}: {key}: unknown key" in message
    assert near in message


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ('max_iterations = "15"\n', 1, "max_iterations"),
        ("timeout = true\n", 1, "timeout"),
        ('\n[git]\nauto_commit = "yes"\n', 3, "git.auto_commit"),
        ('[ncu]\nset = "everything"\n', 2, "ncu.set"),
        ('[git]\nallowed_edit_paths = "src"\n', 2, "git.allowed_edit_paths"),
        ("[git]\nallowed_edit_paths = [1]\n", 2, "git.allowed_edit_paths"),
        ("[judge]\nmax_samples = 2.5\n", 2, "judge.max_samples"),
        ("[run]\ntimeout = 0\n", 2, "run.timeout"),
        ("build = 3\n", 1, "build"),
        ("build_cmd = 2026-01-01\n[build]\ntimeout = 2026-01-01\n", 3, "build.timeout"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(tmp_path: Path, text: str, line: int, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert f"{tmp_path / PROJECT_FILE}:{line}: {key}: " in str(caught.value)


def test_all_errors_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, "aaa = 1\nmax_iterations = 'x'\n")
    assert len(str(caught.value).splitlines()) == 2


def test_the_users_file_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"user\.toml:1: modle"):
        load(tmp_path, "", "modle = 'x'\n")


@pytest.mark.parametrize("content", [b"max_iterations = \n", b"\xff\xfe"])
def test_what_is_no_toml_is_said(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"x\.toml is not valid TOML"):
        load(tmp_path, config=file)


def test_an_impossible_option_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"llm\.max_cost"):
        load(tmp_path, options={"llm.max_cost": -1.0})


def test_keys_never_hold_a_secret() -> None:
    assert not [key for key in known_keys() if "key" in key.split(".")[-1] and key != "keys"]


@pytest.mark.parametrize(
    ("names", "near"),
    [(["timout"], "timeout"), (["git", "branches"], "git.branch"), (["zzzz"], ""), (["model"], "llm.model")],
)
def test_nearest_key(names: list[str], near: str) -> None:
    assert nearest_key(names) == near


def test_the_users_file_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_file() == tmp_path / "tachyon" / "config.toml"
