"""One form for every model: functions inlined, sparse dense, names unique, with the same numbers."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from mpdeploy.errors import ModelError
from mpdeploy.graph import io
from mpdeploy.graph.scope import all_graphs, all_nodes, all_values, graph_of, parent_node


@pytest.fixture
def loaded(sample, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(sample[0].SerializeToString())
    return io.load(path)


def test_functions_are_gone_and_nothing_sparse_is_left(loaded):
    assert not loaded.functions
    assert all(node.domain == "" for node in all_nodes(loaded))
    assert not ir.to_proto(loaded).graph.sparse_initializer


def test_every_name_is_there_and_its_own(loaded):
    names = [node.name for node in all_nodes(loaded)]
    assert all(names)
    assert len(set(names)) == len(names)


def test_sparse_weights_become_what_they_mean(sample_of, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_of("sparse")[0].SerializeToString())
    weights = {n: v.const_value.numpy() for n, v in io.load(path).graph.initializers.items()}
    flat, pairs = np.zeros(16, np.float32), np.zeros((4, 4), np.float32)
    flat[[0, 5, 15]] = 1, 2, 3
    pairs[0, 3], pairs[2, 1] = 4, 5
    np.testing.assert_array_equal(weights["a"], flat.reshape(4, 4))
    np.testing.assert_array_equal(weights["b"], pairs)


@pytest.mark.parametrize(
    ("indices", "dims", "says"),
    [
        ([0, 5, 16], [4, 4], "outside its shape"),
        ([0, 5, -1], [4, 4], "outside its shape"),
        ([0, 5, 15], [2**16, 2**16], "elements when dense"),
    ],
)
def test_sparse_weights_that_cannot_be(sample_of, tmp_path, indices, dims, says):
    model, _ = sample_of("sparse")
    sparse = model.graph.sparse_initializer[0]
    sparse.indices.CopyFrom(helper.make_tensor("i", 7, [3], indices))
    sparse.dims[:] = dims
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=says):
        io.load(path)


def test_names_are_kept_where_they_are_unique():
    nodes = [
        ir.node("Relu", [], name="mine"),
        ir.node("Relu", [], name="mine"),
        ir.node("Relu", [], name=""),
        ir.node("Relu", [], name="Relu_2"),
        ir.node("Relu", [], name="mine__1"),
    ]
    model = ir.Model(ir.Graph([], [], nodes=nodes, name="g", opset_imports={"": 17}), ir_version=8)
    from mpdeploy.graph.canonical import name_nodes

    name_nodes(model)
    names = [node.name for node in nodes]
    assert names[0] == "mine"
    assert names[3] == "Relu_2"
    assert names[4] == "mine__1"
    assert len(set(names)) == 5
    name_nodes(model)
    assert [node.name for node in nodes] == names


def test_functions_in_functions_compute_the_same(sample_of, tmp_path, run):
    model, feed = sample_of("functions")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    io.save(io.load(path), tmp_path / "flat.onnx")
    flat = onnx.load(tmp_path / "flat.onnx")
    assert not flat.functions
    assert [n.op_type for n in flat.graph.node].count("MatMul") == 4
    np.testing.assert_array_equal(run(tmp_path / "flat.onnx", feed)[0], run(path, feed)[0])


def test_the_scope_reaches_every_corner(sample_of, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_of("branches")[0].SerializeToString())
    model = io.load(path)
    graphs = list(all_graphs(model))
    assert [g.name for g in graphs] == ["branches", "yes", "no", "turn"]
    holders = parent_node(model)
    assert [holders[id(g)].op_type for g in graphs[1:]] == ["If", "If", "Loop"]
    nodes = [n.op_type for n in all_nodes(model)]
    # A node comes before the nodes of its subgraphs, in order of execution.
    assert nodes == ["If", "MatMul", "Mul", "Constant", "Loop", "Constant", "Identity", "Tanh", "MatMul"]
    values = {v.name: v for v in all_values(model)}
    assert {"x", "flag", "turns", "inner", "a", "b", "go", "picked", "s", "step", "t", "s2", "y"} <= values.keys()
    assert len(values) == len(list(all_values(model)))
    assert graph_of(values["inner"]) is graphs[1]
    assert graph_of(values["x"]) is graphs[0]
