"""`mpdeploy doctor` tells what works here."""

import json
import subprocess
import sys

from mpdeploy.cli.doctor_checks import Check, Status, all_checks
from mpdeploy.errors import DependencyError


def doctor(*words):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", "doctor", *words], capture_output=True, text=True, check=False
    )


def test_the_document_says_what_works():
    done = doctor("--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in document["findings"]}
    assert found["emulator"]["status"] == "works"
    assert found["emulator"]["formats"] == ["fp32", "fp16", "bf16"]
    assert found["onnxruntime"]["formats"] == ["fp32"]
    assert document["machine"]["cores"] >= 1


def test_the_table_names_every_library_and_what_to_install():
    done = doctor()
    assert done.returncode == 0, done.stderr
    for check in all_checks():
        assert check.name in done.stdout
    lines = [line for line in done.stdout.splitlines() if " missing " in line]
    assert all("pip install" in line or "GPU" in line for line in lines)


def _raising(error):
    def run():
        raise error

    return Check("library", "tests", run, "pip install library").finding()


def test_a_failure_of_any_kind_is_a_finding():
    missing = _raising(ImportError("No module named 'library'"))
    assert (missing.status, missing.remedy) == (Status.MISSING, "pip install library")
    unfit = _raising(DependencyError("needs a GPU", remedy="find one"))
    assert (unfit.status, unfit.detail, unfit.remedy) == (Status.MISSING, "needs a GPU", "find one")
    broken = _raising(OSError("undefined symbol:\n cudaMalloc"))
    assert broken.status is Status.BROKEN
    assert broken.detail == "OSError: undefined symbol: cudaMalloc"
