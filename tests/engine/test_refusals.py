"""What a target cannot do is refused in plain words, before a builder is asked."""

import shlex

import pytest

from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.network import Port
from mpdeploy.engine.options import BuildOptions, Feature, parse_shapes
from mpdeploy.engine.target import Target, choose_target, suggest_shapes
from mpdeploy.engine.toolkit import Flavour, Toolkit, load_toolkit
from mpdeploy.errors import BuildError, DependencyError, UsageError
from mpdeploy.numerics.formats import Format

# The classic TensorRT as far as the checks before a build look at it: it cannot be installed everywhere.
CLASSIC = Toolkit(Flavour.TENSORRT, module=None, version="11.4.0", selectable=())
RTX = Toolkit(Flavour.RTX, module=None, version="1.7.1", selectable=(75, 80, 86, 89, 120, 121))
A10 = Gpu("NVIDIA A10", 86, 24 << 30)


# The values of an input decide a shape.
FOLD = "(float[12] x, int64[2] n) => (float[a,b] y) { y = Reshape(x, n) }"
COUNT = "(int64 n) => (int64[a] y) <int64 i = {1}> { y = Range(i, n, i) }"


def options(**changes):
    return BuildOptions(**changes)


def test_hopper_is_no_target_of_rtx():
    with pytest.raises(UsageError, match=r"cannot build for SM 90, 100 .*75, 80, 86, 89, 120, 121.*--backend tensorrt"):
        choose_target(RTX, options(capabilities=(86, 90, 100)), ())


@pytest.mark.parametrize("feature", [Feature.STRIP_WEIGHTS, Feature.REFIT])
def test_what_needs_a_gpu_on_rtx_says_so(feature):
    wanted = options(features=(feature,))
    with pytest.raises(DependencyError, match=f"needs a GPU to build with {feature.value}"):
        choose_target(RTX, wanted, ())
    assert choose_target(RTX, wanted, (A10,)).gpu == A10


@pytest.mark.parametrize("feature", [Feature.VERSION_COMPATIBLE, Feature.HARDWARE_COMPATIBLE])
def test_what_rtx_does_not_have_is_refused(feature):
    with pytest.raises(UsageError, match=f"no {feature.value} engines"):
        choose_target(RTX, options(features=(feature,)), (A10,))


def test_rtx_targets_ampere_and_later_unless_told_otherwise():
    assert choose_target(RTX, options(), ()) == Target((80, 86, 89, 120, 121), None)
    assert choose_target(RTX, options(capabilities=(89, 75)), ()).capabilities == (75, 89)


def test_classic_builds_for_the_gpu_that_is_there():
    assert choose_target(CLASSIC, options(), (A10,)) == Target((86,), A10)
    with pytest.raises(UsageError, match="of this machine only, SM 86"):
        choose_target(CLASSIC, options(capabilities=(89,)), (A10,))
    with pytest.raises(DependencyError, match="this machine has none"):
        choose_target(CLASSIC, options(), ())


def test_a_missing_library_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(DependencyError, match=r"pip install 'mpdeploy\[tensorrt\]'"):
        load_toolkit(Flavour.TENSORRT)


def test_an_unknown_back_end_lists_the_known_ones():
    with pytest.raises(UsageError, match="choose from rtx, tensorrt"):
        find_backend("tensorflow")


@pytest.mark.parametrize(
    ("shape", "flag"),
    [
        (("N", 3, 224, 224), "--shapes x:1x3x224x224:8x3x224x224:32x3x224x224"),
        ((None, "length"), "--shapes x:1x8:8x8:32x8"),
        ((2, "length"), "--shapes x:2x1:2x8:2x32"),
    ],
)
def test_the_suggested_flag_can_be_used_as_it_is(shape, flag):
    assert suggest_shapes(Port("x", "fp32", shape)) == flag
    parse_shapes([flag.removeprefix("--shapes ")])


def test_a_suggestion_can_be_pasted_into_a_shell():
    port = Port("in put$(x)", "fp32", ("N", 4))
    assert shlex.split(suggest_shapes(port)) == ["--shapes", "in put$(x):1x4:8x4:32x4"]


class TestWithRtx:
    """The network itself is looked at: it takes the installed parser, but no builder."""

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

    @pytest.fixture
    def refused(self, layer, tmp_path):
        def attempt(fault, match, *, kind=Format.FP16, rows=4, **changes):
            engine = tmp_path / "model.engine"
            with pytest.raises(fault, match=match):
                build_engine(layer(kind, rows=rows), engine, options=BuildOptions(**changes))
            assert not engine.exists()

        return attempt

    def test_bf16_on_turing(self, refused):
        refused(UsageError, "SM 75 has no BF16", kind=Format.BF16, capabilities=(75,))

    def test_a_dynamic_input_without_a_range(self, refused):
        refused(UsageError, r"dynamic inputs .* x .*add --shapes x:1x4:8x4:32x4", rows="N")

    def test_a_range_out_of_a_fixed_dimension(self, refused):
        refused(UsageError, r"does not fit .*\[N, 4\]", rows="N", profiles=parse_shapes(["x:1x5:8x5:32x5"]))

    def test_a_range_of_another_rank(self, refused):
        refused(UsageError, "does not fit", rows="N", profiles=parse_shapes(["x:4:4:4"]))

    def test_a_range_for_a_fixed_input(self, refused):
        refused(UsageError, "leave it out", profiles=parse_shapes(["x:1x4:8x4:32x4"]))

    def test_a_range_for_an_unknown_input(self, refused):
        refused(UsageError, "no input 'images'", profiles=parse_shapes(["images:1x4:8x4:32x4"]))

    def test_a_name_that_is_nearly_right_is_suggested(self, refused):
        refused(UsageError, r"no input 'xx'.*did you mean 'x'", profiles=parse_shapes(["xx:1:1:1"]))

    @pytest.mark.parametrize(
        ("body", "flag", "wrong", "right"),
        [
            (
                "(float[12] x, int64[2] n) => (float[a,b] y) { y = Reshape(x, n) }",
                "1x1:8x8:32x32",
                "1:3:12",
                "1x1:3x4:12x12",
            ),
            ("(int64 n) => (int64[a] y) <int64 i = {1}> { y = Range(i, n, i) }", "1:8:32", "1x1:2x2:3x3", "2:3:9"),
        ],
    )
    def test_values_that_decide_shapes_have_ranges_too(self, text_model, tmp_path, body, flag, wrong, right):
        model = text_model(f'<ir_version: 10, opset_import: ["" : 17]> g {body}')
        with pytest.raises(UsageError, match=f"add --shapes n:{flag}$"):
            build_engine(model, tmp_path / "e")
        with pytest.raises(UsageError, match=rf"values that decide shapes.*as in --shapes n:{flag}"):
            build_engine(model, tmp_path / "e", options=BuildOptions(profiles=parse_shapes([f"n:{wrong}"])))
        build_engine(model, tmp_path / "e", options=BuildOptions(profiles=parse_shapes([f"n:{right}"])))

    def test_ranges_that_the_graph_forbids_name_the_flag(self, text_model, tmp_path):
        model = text_model(f'<ir_version: 10, opset_import: ["" : 17]> g {FOLD}')
        with pytest.raises(BuildError, match=r"violate shape constraints.*--shapes"):
            build_engine(model, tmp_path / "e", options=BuildOptions(profiles=parse_shapes(["n:1x1:8x8:32x32"])))

    def test_the_parser_names_the_node_without_the_stray_driver_line(self, layer):
        with (
            pytest.raises(
                BuildError, match=r"multiply.* same input types.*node 'multiply' \(MatMul\).*convert"
            ) as caught,
            find_backend("rtx").parse(layer(Format.FP16, stored=Format.FP32)),
        ):
            pass
        assert "cuda" not in str(caught.value).lower()
        assert "/_src/" not in str(caught.value)

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            ("(float[4,4] x) => (float y) { y = Det(x) }", "TensorRT lacks the operator Det.*replace it"),
            ("(float[4,4] x) => (int64[2,n] y) { y = NonZero(x) }", "NonZero plugin.*replace it"),
            (
                "(float[1,9,4] b, float[1,1,9] s) => (int64[n,3] y) <int64 k = {3}> { y = NonMaxSuppression(b, s, k) }",
                r"no kernel for this NonMaxSuppression .*makes 'y' \(NonMaxSuppression\).*replace it",
            ),
            ("(string[4] x) => (string[n] y) { y = StringNormalizer(x) }", "type that TensorRT lacks, such as string"),
            (
                "(bfloat16[1,4] x) => (bfloat16[1,4] y) { y = HardSwish(x) }",
                r"supported for the HardSwish.*\(HardSwish\).*--op-fp32 HardSwish",
            ),
            (
                "(bfloat16[1,2,4,4] x, bfloat16[2,2,3,3] w) => (bfloat16[1,2,a,b] y) { y = ConvTranspose(x, w) }",
                r"no kernel for this ConvTranspose.*makes 'y' \(ConvTranspose\).*--op-fp32 ConvTranspose",
            ),
        ],
    )
    def test_what_tensorrt_lacks_is_said_in_plain_words(self, text_model, tmp_path, body, says):
        model = text_model(f'<ir_version: 10, opset_import: ["" : 22]> g {body}')
        with pytest.raises(BuildError, match=says) as caught:
            build_engine(model, tmp_path / "model.engine")
        assert "mem_prop" not in str(caught.value)
        assert "Assertion" not in str(caught.value)
