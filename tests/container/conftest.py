"""The image is built once, on a base that `tests/container/prepare` made, from wheels that `make wheels` fetched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import ROOT
from podman import BASE, BUILD_S_MAX, IMAGE, Podman

BASE_ARCHIVE = ROOT / "build" / "container" / "base.tar"


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    assert shutil.which("podman"), "podman is missing; run these tests with: make test-container"
    podman = Podman(tmp_path_factory.mktemp("podman"))
    yield podman
    podman.remove_everything()


@pytest.fixture(scope="session")
def image(podman: Podman) -> str:
    assert BASE_ARCHIVE.exists(), "the base image is missing; run these tests with: make test-container"
    assert list(Path(ROOT / "deploy" / "wheels").glob("*.whl")), "the wheels are missing: make wheels"
    podman("import", str(BASE_ARCHIVE), BASE, timeout_s=BUILD_S_MAX)
    # No network at all: what the image is made of is what lies in deploy/wheels.
    podman(
        *("build", "--format=docker", "--network=none", f"--build-arg=BASE={BASE}", "--build-arg=PIP_NO_INDEX=1"),
        *(f"--tag={IMAGE}", str(ROOT)),
        timeout_s=BUILD_S_MAX,
    )
    return IMAGE
