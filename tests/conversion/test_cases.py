"""Every graph: converted to FP16 and BF16, with data and without, and held to every check of the harness."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conversion.graphs import between_products
from tests.conversion.harness import faults, faults_with_data

KINDS = sorted(path.stem for path in Path(__file__).parent.glob("graphs_*.py"))
CASES = {kind: importlib.import_module(f"tests.conversion.{kind}").CASES for kind in KINDS}


AS_GIVEN = [case for kind in KINDS for case in CASES[kind]]
# Exact numbers and borders are what they are only as given.
DRAWN = [c for kind in KINDS for c in CASES[kind] if kind not in ("graphs_exact", "graphs_borders")]


def pairs(cases):
    return [pytest.param(case, low, id=f"{case.name}-{low}") for case in cases for low in case.formats]


@pytest.mark.parametrize(("case", "precision"), pairs(AS_GIVEN))
def test_the_converted_model_keeps_every_promise(case, precision, folder):
    assert faults(case, precision, folder) == []


@pytest.mark.parametrize(("case", "precision"), pairs(c for c in DRAWN if c.runs and c.drawn))
def test_drawn_towards_low_precision_it_still_keeps_its_numbers(case, precision, folder):
    def tweak(model):
        if case.tweak is not None:
            case.tweak(model)
        between_products(model)

    assert faults_with_data(replace(case, tweak=tweak), precision, folder) == []


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in AS_GIVEN]
    assert sorted(set(names)) == sorted(names)
