"""Facts about this machine that decide which formats are fast on it."""

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mpdeploy.engine.gpu import Gpu, find_gpus

# Processor features that matter for low precision, as Linux and macOS spell them.
_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "avx512_fp16": "AVX512-FP16",
    "amx_bf16": "AMX-BF16",
    "amx_fp16": "AMX-FP16",
    "asimdhp": "NEON-FP16",
    "bf16": "NEON-BF16",
    "hw.optional.arm.FEAT_FP16": "NEON-FP16",
    "hw.optional.arm.FEAT_BF16": "NEON-BF16",
}


@dataclass(frozen=True)
class Machine:
    """Operating system, Python, processor with its low-precision features, usable cores, GPUs."""

    system: str
    python: str
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    gpus: tuple[Gpu, ...]


def describe_machine() -> Machine:
    """Return the facts of the machine that this runs on."""
    name, words = _processor()
    features = dict.fromkeys(label for word, label in _FEATURES.items() if word in words)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Machine(system, platform.python_version(), name, tuple(features), cores, find_gpus())


def _processor() -> tuple[str, set[str]]:
    """Return the processor's name and its features in the system's own words."""
    fallback = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        text = listing.read_text(errors="replace")
        name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
        return name[1] if name else fallback, set(flags[1].split()) if flags else set()
    if sys.platform == "darwin":
        name_text = _sysctl("-n", "machdep.cpu.brand_string").strip()
        pairs = (line.rpartition(": ") for line in _sysctl("hw.optional").splitlines())
        return name_text or fallback, {key for key, _, value in pairs if value == "1"}
    return fallback, set()


def _sysctl(*words: str) -> str:
    done = subprocess.run(["sysctl", *words], capture_output=True, text=True, check=False)
    return done.stdout
