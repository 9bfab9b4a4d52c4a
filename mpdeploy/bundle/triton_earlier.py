"""Versions that an earlier bundle serves, to stay in Triton's repository beside the new one."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpdeploy.bundle.check import check_bundle
from mpdeploy.bundle.triton_config import triton_schema
from mpdeploy.errors import UsageError

HOME, CONFIG = "triton", "config.pbtxt"
_NUMBER = re.compile(r"[1-9][0-9]*", re.ASCII)
# What one configuration says for all versions of a model.
_SHARED = ("backend", "default_model_filename", "input", "output")


@dataclass(frozen=True)
class Earlier:
    """The Triton repository of an earlier bundle, which was checked byte by byte."""

    home: Path
    title: str

    def newest(self) -> int:
        """Return the highest version number of any model; 0 if there is none."""
        return max((int(path.name) for path in self.home.glob("*/*") if _is_version(path)), default=0)

    def versions(self, name: str) -> list[Path]:
        """Return the folders of a model's versions, the newest last."""
        return sorted(filter(_is_version, (self.home / name).glob("*")), key=lambda path: int(path.name))

    def config(self, name: str) -> Any:
        """Return a model's configuration, a message of Triton's schema."""
        from google.protobuf import text_format

        path = self.home / name / CONFIG
        try:
            return text_format.Parse(path.read_text(encoding="utf-8"), triton_schema().ModelConfig())
        except (OSError, ValueError, text_format.ParseError) as error:
            raise UsageError("not a configuration that Triton reads", where=str(path)) from error


def open_earlier(bundle: Path) -> Earlier:
    """Return the repository in ``bundle``.

    Raises ``UsageError`` if it has none or may not be shipped, ``VerificationFailed`` if it changed.
    """
    manifest = check_bundle(bundle)
    if not (bundle / HOME).is_dir():
        raise UsageError("the earlier bundle has no Triton repository", where=str(bundle), remedy="leave it out")
    if not manifest.passed:
        raise UsageError(
            f"the earlier bundle may not be shipped: {'; '.join(manifest.reasons)}",
            where=str(bundle),
            remedy="leave it out",
        )
    return Earlier(bundle / HOME, f"{manifest.name} {manifest.version}")


def is_same_interface(one: Any, other: Any) -> bool:
    """Tell whether two configurations agree in all that holds for every version of a model."""
    if bool(one.max_batch_size) != bool(other.max_batch_size):
        return False
    return all(_plain(one, name) == _plain(other, name) for name in _SHARED)


def _plain(config: Any, name: str) -> object:
    value = getattr(config, name)
    return value if isinstance(value, str) else list(value)


def _is_version(path: Path) -> bool:
    return path.is_dir() and _NUMBER.fullmatch(path.name) is not None
