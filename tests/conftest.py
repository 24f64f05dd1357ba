"""Fixtures for all tests."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recorded reports of tests/data/reports, decompressed."""
    folder = tmp_path_factory.mktemp("reports")
    for packed in sorted((DATA / "reports").glob("*.ncu-rep.xz")):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder
