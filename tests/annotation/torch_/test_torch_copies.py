"""`traceable.instrument_copies`: direction, bytes and memory of the copies between host and device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from traceable.annotation.torch.copies import METHODS, Copy, get_copy_direction, predict_copy  # noqa: E402

SCENARIOS = "scenarios_copies.py"

FLOATS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("source", "target", "way"),
    [
        ("cpu", "cuda:0", "h2d"),
        ("cuda:1", "cpu", "d2h"),
        ("cuda:0", "cuda:1", "d2d"),
        ("cuda:0", "xpu:0", "d2d"),
        ("cuda:0", "cuda:0", None),
        ("cpu", "cpu", None),
        ("cpu", "meta", None),
        ("meta", "cuda:0", None),
    ],
)
def test_direction(source, target, way):
    assert get_copy_direction(torch.device(source), torch.device(target)) == way


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (("cuda:0",), {}, 24),
        ((torch.device("cuda", 1),), {"non_blocking": True}, 24),
        (("cuda:0", torch.float16), {}, 12),
        (("cuda:0", torch.float64, True, True), {}, 48),
        ((), {"device": "cuda:0", "dtype": torch.int8}, 6),
        ((), {"device": "xpu:0"}, 24),
        ((torch.float16,), {}, None),
        ((), {"dtype": torch.float16}, None),
        (("cpu",), {}, None),
        (("cpu", torch.float16), {}, None),
        ((torch.zeros(1, dtype=torch.int64),), {}, None),
        (("nowhere",), {}, None),
        ((), {}, None),
        ((3.5,), {}, None),
    ],
)
def test_to_is_read_as_torch_reads_it(args, kwargs, expected):
    copy = predict_copy(METHODS["to"], FLOATS, args, kwargs)
    assert copy == (None if expected is None else Copy("h2d", expected, "pageable"))


@pytest.mark.parametrize(("args", "kwargs"), [((1,), {}), (("cuda:0",), {"non_blocking": True}), ((), {"device": 0})])
def test_cuda_is_read_as_torch_reads_it(args, kwargs):
    assert predict_copy(METHODS["cuda"], FLOATS, args, kwargs) == Copy("h2d", 24, "pageable")


def test_a_python_type_as_dtype_leaves_the_bytes_unclaimed():
    assert predict_copy(METHODS["to"], FLOATS, ("cuda:0", float), {}) == Copy("h2d", None, "pageable")


def test_of_a_sparse_tensor_the_bytes_are_not_claimed():
    assert predict_copy(METHODS["to"], FLOATS.to_sparse(), ("cuda:0",), {}) == Copy("h2d", None, "pageable")


def list_copies(got):
    return [(one.name, one.payload, one.category) for one in got.ranges]


def test_to_in_every_form(nvtx_log):
    got = nvtx_log("to")
    assert got.answer is True
    assert list_copies(got) == [
        ("h2d", 24, "pageable"),
        ("h2d", 48, "pageable"),
        ("h2d", 6, "pageable"),
        ("h2d", 24, "pageable"),
        ("d2h", 24, "pageable"),
        ("d2h", 24, "pinned"),
        ("d2h", 24, "pageable"),
    ]


def test_the_other_methods(nvtx_log):
    got = nvtx_log("other_methods")
    assert got.answer == [True, True, [[1.0] * 3] * 2]
    assert list_copies(got) == [
        ("d2h", 24, "pageable"),
        ("d2h", 24, "pageable"),
        ("d2h", 8, None),
        ("d2h", 24, "pageable"),
        ("h2d", 24, "pageable"),
    ]


def test_what_crosses_nothing_emits_nothing(nvtx_log):
    got = nvtx_log("nothing_crosses")
    assert got.tree() == ""
    assert got.answer == "cpu"


def test_what_goes_through_the_methods_is_heard(nvtx_log):
    assert list_copies(nvtx_log("through_modules")) == [("h2d", 24, "pageable"), ("h2d", 8, "pageable")]


def test_what_torch_refuses_is_refused_and_balanced(nvtx_log):
    got = nvtx_log("refused")
    plain, names = got.answer
    assert names == plain
    assert "accepted" not in plain
    assert {one.name for one in got.flat()} <= {"h2d", "d2h"}


def test_handles_are_counted_and_give_torch_back(nvtx_log):
    got = nvtx_log("handles")
    assert got.tree() == "h2d h2d"
    assert got.answer == [True, True, []]


def test_overrides_are_handed_torchs_own_methods_as_often_as_ever(nvtx_log):
    got = nvtx_log("overrides")
    same, (tabled, watched) = got.answer
    assert same
    assert [one for one in tabled if one != "other"] == ["to", "to", "copy_"]
    assert watched[:2] == ["to", "cpu"]
    assert got.tree() == "h2d h2d"


def test_a_patch_of_someone_elses_stays(nvtx_log):
    got = nvtx_log("after_another_patch")
    assert got.answer is True
    assert got.tree() == "h2d removed again(d2h)"
