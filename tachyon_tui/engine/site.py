"""What one session works with: the shared objects of a run, and what is known of the incumbent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tachyon_tui.agents.base import Agent
from tachyon_tui.core.launches import LaunchKey
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.session import SessionPaths
from tachyon_tui.core.settings import Settings
from tachyon_tui.engine.bench import Bench, Sample
from tachyon_tui.engine.briefing import RoundNote
from tachyon_tui.engine.control import Control
from tachyon_tui.engine.diagnosis import Diagnosis
from tachyon_tui.engine.judge import Judge
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.workspace.git import Repository
from tachyon_tui.workspace.source_tree import Snapshot, SourceTree
from tachyon_tui.workspace.tamper import Tamper


@dataclass
class Incumbent:
    """The last accepted state: files, code, times, diagnosis."""

    files: Snapshot
    head: str
    ms: float = 0.0
    round: int | None = None
    """None while the incumbent is the program as found."""
    code: frozenset[str] = frozenset()
    launches: Mapping[LaunchKey, int] = field(default_factory=dict)
    profiles: tuple[KernelProfile, ...] = ()
    walls: list[float] = field(default_factory=list)
    """Wall times in s of its latest runs."""
    samples: list[Sample] = field(default_factory=list)
    """Its latest warm runs, at most 10."""

    def saw(self, sample: Sample) -> None:
        """Remember one more warm run."""
        self.samples = [*self.samples, sample][-10:]
        self.walls = [*self.walls, sample.seconds][-10:]
        self.ms = median(sample.charged.ms for sample in self.samples)

    def renew(self, sample: Sample, ms: float, confirming: Sequence[Sample]) -> None:
        """The candidate of this sample is the incumbent now."""
        self.ms = ms
        self.code = sample.record.code
        self.launches = sample.charged.launches
        self.samples = list(confirming)
        self.walls = [sample.seconds for sample in confirming]


@dataclass
class Budget:
    """Tokens and money of the session."""

    max_tokens: int | None
    max_usd: float | None
    tokens: int = 0
    usd: float | None = 0.0
    """None once a request without a known price was made."""

    def spent(self) -> bool:
        """True when a limit is reached."""
        over_tokens = self.max_tokens is not None and self.tokens >= self.max_tokens
        over_usd = self.max_usd is not None and self.usd is not None and self.usd >= self.max_usd
        return over_tokens or over_usd


@dataclass
class Site:
    """The shared objects of one session."""

    settings: Settings
    cwd: Path
    root: Path
    paths: SessionPaths
    attended: bool
    """A person watches: what headless is rejected goes to review."""
    log: EventLog
    control: Control
    ledger: Ledger
    repo: Repository
    bench: Bench
    tree: SourceTree
    tamper: Tamper
    diagnosis: Diagnosis
    judge: Judge
    agent: Agent
    budget: Budget
    incumbent: Incumbent
    branch: str = ""
    """The branch that was checked out at the start; empty for a detached HEAD."""
    start_head: str = ""
    """The commit that was checked out at the start."""
    base_ms: float = 0.0
    base_profiles: tuple[KernelProfile, ...] = ()
    kernel_names: tuple[str, ...] = ()
    notebook: list[RoundNote] = field(default_factory=list)
    before: dict[int, Snapshot] = field(default_factory=dict)
    """The editable files as they were before each accepted round."""
    exit_code_alone: bool = False
    why_no_profile: str = ""
