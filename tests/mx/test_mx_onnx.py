"""`mx.contrib.onnx.import_model`: operators as ONNX Runtime computes them, open sizes, blocks, what a file says, errors."""

import re
import sys

import numpy as np
import pytest

import jfit.mx as mx

WHY = "pip install 'jfit[test]': ONNX files are read by the package onnx, and run in ONNX Runtime"
onnx = pytest.importorskip("onnx", reason=WHY)
runtime = pytest.importorskip("onnxruntime", reason=WHY)
helper, parser = (pytest.importorskip(f"onnx.{name}") for name in ("helper", "parser"))
runtime.set_default_logger_severity(3)
RNG = np.random.RandomState(0)


def drawn(shapes):
    """Arrays by name from text such as "w=6,2,3,3 b=6"."""
    pairs = (pair.split("=") for pair in shapes.split())
    return {name: RNG.uniform(-1, 1, [int(n) for n in sizes.split(",")]).astype("float32") for name, sizes in pairs}


DATA = drawn("image=2,4,6,6 line=2,4,7 rows=2,3,4 table=2,4 other=2,4,3 time=5,2,3")
DATA |= {
    "last": np.array([[-1], [0]]),
    "ids": np.array([[1, -1], [0, 2]]),
    "whole": np.array([[7, -7, 5, 3], [-2, 4, 9, -9]], "int32"),
}
WEIGHTS = drawn(
    "w=6,2,3,3 w_line=3,4,3 b=6 w_up=4,3,3,3 four=4 scale=4 mean=4 var=4 slope=4,1,1 matrix=4,5 turned=5,4 five=5 block=1,4,3 "
    "updates=2,2 lstm_w=2,16,3 lstm_r=2,16,4 lstm_b=2,32 gru_w=1,12,3 gru_r=1,12,4 rnn_w=1,4,3 rnn_r=1,4,4 "
    "patch=3,4 patch3=3,1 wide3=3,1,4 fc=5,6 one_four=1,4 wide_w=5,12 tall=1,4,6,2"
)
WEIGHTS |= {"scale": WEIGHTS["scale"] + 2, "var": WEIGHTS["var"] + 1.5, "flags": np.array([True, False, True, True])}
WEIGHTS |= {"mask": np.tri(3, dtype=bool), "gaps": np.float32([1, np.nan, 2, -np.inf]), "places": np.ones((640, 2), "float32")}
WEIGHTS |= {"low": np.float32([[-np.inf, 1], [2, np.inf]]), "rnn_w2": np.ones((2, 4, 3), "float32")}
WEIGHTS |= {"rnn_r2": np.ones((2, 4, 4), "float32"), "place": np.array([[1]]), "seven": np.float32([[7]])}
LINES = {  # opset -> nodes in ONNX's text format; I(...) is a constant vector of integers, F(...) of floats, S(...) a scalar
    9: """
        Conv<pads=[1,0,2,1],strides=[2,1],group=2>(image,w,b)  Conv<auto_pad="SAME_UPPER",group=2>(image,w)
        Conv<pads=[1,1],dilations=[2]>(line,w_line)
        ConvTranspose<strides=[2,2],pads=[1,1,1,1],output_padding=[1,1]>(image,w_up)
        ConvTranspose<strides=[2,2],pads=[0,1,1,1]>(image,w_up)  ConvTranspose<pads=[0,0,2,1]>(image,w_up)
        MaxPool<kernel_shape=[3,2],strides=[2,2],pads=[0,0,1,1]>(image)  MaxPool<kernel_shape=[2]>(line)
        AveragePool<kernel_shape=[3,3],pads=[1,1,1,1],count_include_pad=1>(image)
        AveragePool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(image)
        AveragePool<kernel_shape=[3,3],pads=[0,0,1,1]>(image)  GlobalAveragePool(line)  GlobalMaxPool(image)
        LpPool<kernel_shape=[2,2]>(image)  BatchNormalization<epsilon=0.01>(image,scale,four,mean,var)
        InstanceNormalization(image,scale,four)  LRN<size=3>(image)  Softmax(rows)  LogSoftmax<axis=1>(rows)
        Softmax<axis=2>(rows)  PRelu(image,slope)  Clip<min=-0.5,max=0.5>(table)
        Gemm<transB=1,alpha=0.5,beta=2.0>(table,turned,five)  Gemm<transB=1>(table,turned,five)  Gemm(table,matrix,five)
        Slice<starts=[1,0],ends=[9,-1],axes=[2,3]>(image)  Squeeze<axes=[0]>(one_four)  Unsqueeze<axes=[0,2]>(table)
        Split<axis=1,split=[1,3]>(table)  Pad<pads=[0,1,0,1],value=2.0>(table)
        Pad<mode="reflect",pads=[0,0,1,2,0,0,0,1]>(image)  Upsample<mode="nearest">(image,F(1,1,2,3))  Dropout(table)
        ReduceSum<axes=[1],keepdims=0>(rows)  TopK<axis=1,k=2>(table)  Flatten(image)  Flatten<axis=2>(image)
        Flatten<axis=0>(table)  Cast<to=6>(table)
    """,
    13: """
        Relu(table)  LeakyRelu<alpha=0.2>(table)  Elu<alpha=2.0>(table)  Sigmoid(table)  Tanh(table)  Softplus(table)
        Selu(table)  HardSigmoid(table)  Erf(table)  Softsign(table)  Exp(table)  Clip(table,S(-0.2))  Clip(table,,S(0.2))
        Floor(table)  Ceil(table)  Sign(table)  Neg(table)  Abs(table)  Sqrt(scale)  Log(scale)  Reciprocal(table)  Sin(table)
        Atan(table)  Identity(table)  Not(flags)  IsNaN(table)  Add(rows,patch)  Sub(table,S(1.5))  Sub(S(1.5),table)
        Mul(table,wide3)  Div(S(2),table)  Div(whole,K(2))  Pow(scale,table)  Pow(table,S(2))  Mod(whole,K(3))
        Max(table,four,S(0.1))  Min(table,four)  Sum(patch3,rows,four)  Mean(table,four)  Equal(whole,K(7))
        Greater(table,four)  LessOrEqual(rows,four)  Less(S(0.1),table)  Where(flags,rows,S(0))  Where(flags,table,wide3)
        Softmax(rows)  LogSoftmax<axis=1>(rows)  ReduceMean<axes=[1,2]>(rows)  ReduceMax<axes=[-1],keepdims=0>(rows)
        ReduceMin(rows)  ReduceProd<axes=[1]>(rows)  ReduceSum(rows,I(0,2))  ReduceL1<axes=[1]>(rows)
        ReduceL2<axes=[1]>(rows)  ReduceLogSum<axes=[0]>(var)  ReduceLogSumExp<axes=[2]>(rows)
        ReduceSumSquare<axes=[2],keepdims=0>(rows)  ArgMax<axis=1>(rows)  ArgMin<axis=-1,keepdims=0>(rows)
        TopK<largest=0>(rows,I(2))  CumSum(rows,K64(1))  Reshape(image,I(0,-1))  Reshape(image,I(-1,2,2,6,6))
        Transpose(image)  Transpose<perm=[0,2,1]>(rows)  Squeeze(one_four,I(0))  Unsqueeze(table,I(-1,0))
        Concat<axis=1>(rows,rows)  Split<axis=-1>(table)  Split<axis=1>(line,I(1,3))  Expand(table,I(3,1,4))
        q = Abs(whole)  Pow(q,S(0.5))  Pow(q,four)  Pow(q,K(2))  Pow(S(2.5),whole)  Slice(rows,I(-9),I(-99),I(1),I(-1))
        Pad(rows,I(0,-1,2,0,0,-2),S(3))  Pad<mode="edge">(image,I(0,0,-1,2,0,0,1,0))
        Slice(image,I(-1,5),I(-99,0),I(1,3),I(-1,-2))  Slice(image,I(1,1),I(2,3))  Gather<axis=1>(rows,K64(-1))
        Gather<axis=1>(rows,I(2,0))  Gather(rows,K64(1))  Gather<axis=2>(rows,ids)  GatherElements<axis=1>(table,ids)
        GatherND(rows,ids)  ScatterElements<axis=1>(table,ids,updates)  Pad(rows,I(0,1,2,1,0,0),S(3))
        Pad<mode="edge">(image,I(0,0,1,2,0,0,0,1))  Tile(table,I(2,3))  Cast<to=9>(table)  DepthToSpace<blocksize=2>(image)
        DepthToSpace<blocksize=2,mode="CRD">(image)  SpaceToDepth<blocksize=2>(image)  Shape(rows)  Size(rows)
        MatMul(rows,matrix)  MatMul(rows,block)  MatMul(rows,other)  MatMul(rows,four)  MatMul(table,four)  MatMul(image,tall)
        Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(image,,F(1,1,2,2))
        Resize<mode="linear">(image,,F(1,1,1.5,2))
        Resize<mode="linear",coordinate_transformation_mode="align_corners">(image,,F(1,1,2,2))
        MaxPool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1>(image)
        LSTM<hidden_size=4,direction="bidirectional">(time,lstm_w,lstm_r,lstm_b)
        GRU<hidden_size=4,linear_before_reset=1>(time,gru_w,gru_r)  RNN<hidden_size=4>(time,rnn_w,rnn_r)
        ReverseSequence<time_axis=1,batch_axis=0>(rows,I(2,3))  LpNormalization<axis=1>(table)  Xor(flags,flags)
        And(flags,flags)  Add(table,gaps)  ScatterElements<axis=1>(table,ids,low)  ez = Mul(table,S(300))
        ReduceLogSumExp<axes=[1],keepdims=0>(ez)  Slice(table,I(-1),I(9999999999),I(1),I(-1))
        ea = ReduceSum<keepdims=0>(rows)  eb = Unsqueeze(ea,I(0))  Concat<axis=0>(eb,eb)  Flatten<axis=-1>(rows)
        LpPool<kernel_shape=[2,2],p=1>(image)  GlobalLpPool<p=3>(image)  GatherND<batch_dims=1>(rows,last)
    """,
    21: """
        Gelu(table)  Mish(table)  HardSwish(table)  LayerNormalization<epsilon=0.1>(rows,scale,four)
        LayerNormalization(rows,scale)  ReduceMean(rows,I(1))  Split<axis=1,num_outputs=2>(line)  Dropout(table)
        Cast<to=7>(table)  Softmax<axis=0>(rows)  ReduceMax<noop_with_empty_axes=1>(rows)  Shape<start=1>(image)
        Trilu(rows)  Trilu<upper=0>(rows,K64(1))
    """,
}
# how a constant is written in LINES -> its value
NUMBERS = {"I": lambda v: np.array(v, "int64"), "F": lambda v: np.array(v, "float32"), "S": lambda v: np.array(v[0], "float32")}
NUMBERS |= {"K": lambda v: np.array(v[0], "int32"), "K64": lambda v: np.array(v[0], "int64")}


def model_of(lines, opset):
    """An ONNX model with open first axes; two blanks separate its nodes, whose outputs are y0_0, y1_0, y1_1, ..."""
    constants, nodes = dict(WEIGHTS), []

    def named(match):
        name = f"c{len(constants)}"
        constants[name] = NUMBERS[match[1]]([float(v) for v in match[2].split(",")])
        return name

    for i, line in enumerate(filter(None, re.split(r"\s\s+|\n", re.sub(r"\b(I|F|S|K|K64)\(([-\d.,]+)\)", named, lines)))):
        count = 2 if line.startswith(("TopK", "Split", "GRU", "RNN")) else 3 if line.startswith("LSTM") else 1
        outputs = ", ".join(f"y{i}_{k}" for k in range(count))
        nodes.append(parser.parse_node(line if " = " in line else f"{outputs} = {line}"))
        nodes[-1].name = f"n{i}"
    used = {name for node in nodes for name in node.input}
    sizes = {k: ["n" if v.shape[0] == 2 else "t", *v.shape[1:]] for k, v in DATA.items() if k in used}
    types = {k: helper.np_dtype_to_tensor_dtype(DATA[k].dtype) for k in sizes}
    outputs = [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output if name not in used]
    tensors = [onnx.numpy_helper.from_array(v, k) for k, v in constants.items() if k in used]
    inputs = [helper.make_tensor_value_info(k, types[k], shape) for k, shape in sizes.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model, data):
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, data)


def outputs_of(imported, data):
    """The outputs of an imported graph in evaluation mode."""
    symbol, args, aux = imported
    feeds = {k: mx.nd.array(v, dtype=v.dtype) for k, v in data.items() if k in symbol.list_arguments()}
    return [o.asnumpy() for o in symbol.bind(mx.cpu(), {**args, **feeds}, aux_states=aux).forward()]


def saved(model, path):
    onnx.save(model, path / "net.onnx")
    return str(path / "net.onnx")


@pytest.mark.parametrize("opset", LINES)
def test_operators_compute_what_onnx_runtime_computes(opset, tmp_path):
    model = model_of(LINES[opset], opset)
    data = {i.name: DATA[i.name] for i in model.graph.input}
    names = {o: f"{n.op_type} {n.name}" for n in model.graph.node for o in n.output}
    got = outputs_of(mx.contrib.onnx.import_model(saved(model, tmp_path)), data)
    for output, g, w in zip(model.graph.output, got, run(model, data), strict=True):
        where = names[output.name]
        assert g.shape == (np.shape(w) or (1,)), (where, g.shape, np.shape(w))
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-6, err_msg=where)


# As PyTorch writes x.view(x.size(0), -1), sizes of new arrays, slices up to a size, and attention with a mask.
OPEN = """
    s = Shape(rows)  n = Gather(s,K64(0))  u = Unsqueeze(n,I(0))  c = Concat<axis=0>(u,I(-1))  v = Reshape(rows,c)
    g = Gemm<transB=1>(v,wide_w,five)  z = Concat<axis=0>(u,I(5))  h = ConstantOfShape(z)  a = Add(g,h)
    d = Shape(table)  e = Slice(d,I(0),I(1))  q = Concat<axis=0>(rows,rows)  y1 = Slice(q,I(1),I(-1))  y2 = Slice(q,I(0),e)
    y3 = Expand(one_four,d)  r = Squeeze(e,I(0))  y4 = Range(K64(0),r,K64(1))  k = Transpose<perm=[0,2,1]>(rows)
    m = MatMul(rows,k)  i = Where(mask,m,S(-9))  t = Softmax<axis=-1>(i)  y5 = MatMul(t,rows)  y6 = Flatten<axis=2>(image)
    l = Concat<axis=0>(e,e)  f = ConstantOfShape<value=float[1]{2}>(l)  y7 = Trilu(f,K64(1))
    ex = Shape(image)  ey = Slice(ex,I(0),I(2))  ez = Concat<axis=0>(ey,I(12,9))  y8 = Resize<mode="linear">(image,,,ez)
    y0 = Relu(a)
"""


def test_sizes_that_a_file_leaves_open_stay_open(tmp_path):
    model = model_of(OPEN, 14)
    imported = mx.contrib.onnx.import_model(saved(model, tmp_path))
    for rows in (1, 3):
        data = {i.name: np.resize(DATA[i.name], (rows, *DATA[i.name].shape[1:])) for i in model.graph.input}
        for g, w in zip(outputs_of(imported, data), run(model, data), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_images_of_open_sizes_keep_them(tmp_path):
    model = model_of("s = Shape(image)  r = Reshape(image,I(0,2,-1))  t = Softmax<axis=2>(r)  y = Reshape(t,s)", 13)
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    data = {"image": drawn("image=3,4,5,7")["image"]}
    got = outputs_of(mx.contrib.onnx.import_model(saved(model, tmp_path)), data)
    np.testing.assert_allclose(got[0], run(model, data)[0], rtol=1e-5)


# For an open axis of size t: slices with constant bounds, from the end and of a table, t % 8 and t > 50 as data.
LINES_OF_T = """
    s = Shape(table)  t = Gather(s,I(1))  t0 = Gather(s,K64(1))  t1 = Sub(t0,K64(1))  t2 = Sub(t,I(2))
    y1 = Slice(table,I(0),I(512),I(1))  y2 = Slice(table,I(128),I(9999999999),I(1))  y3 = Slice(table,I(200),I(300),I(1))
    y4 = Slice(table,t2,t,I(1))  y5 = Slice(table,I(0),t2,I(1))  u = Add(t,I(2))  y6 = Slice(places,I(2),u,I(0))
    y7 = Mod(t,I(8))  g = Greater(t,I(50))  y8 = Where(g,table,S(0))  y9 = Gather<axis=1>(table,t1)
    e0 = Gather(s,I(0))  e1 = Concat<axis=0>(e0,I(-1))  e2 = Equal(e1,I(-1,-1))  e3 = Where(e2,I(1,1),e1)
    y10 = Expand(one_four,e3)
"""


def with_open_columns(lines):
    model = model_of(lines, 14)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "t"
    return model


@pytest.mark.parametrize("size", [10, 250, 600])
def test_an_axis_of_any_size_is_cut_where_onnx_runtime_cuts_it(size, tmp_path):
    model = with_open_columns(LINES_OF_T)
    data = {"table": RNG.uniform(-1, 1, (3, size)).astype("float32")}
    got = outputs_of(mx.contrib.onnx.import_model(saved(model, tmp_path)), data)
    for output, g, w in zip(model.graph.output, got, run(model, data), strict=True):
        np.testing.assert_array_equal(g, w, err_msg=output.name)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "m = Mod(t,I(8))  e = Sub(t,m)  y = Slice(table,I(0),e,I(1))",
            "Slice .* has an input 'e' that depends on data or sizes",
        ),
        (
            "m = Sub(t,I(1))  c = Cast<to=9>(m)  e = Cast<to=7>(c)  y = Slice(table,I(0),e,I(1))",
            "Slice .* has an input 'e' that",
        ),
        (
            "m = Equal(t,I(50))  e = Where(m,I(9),t)  y = Slice(table,I(0),e,I(1))",
            "Slice .* has an input 'e' that depends on data",
        ),
        ("m = Min(t,I(20))  y = Slice(table,I(0),m,I(1))", "Slice .* has an input 'm' that depends on data or sizes"),
        ("h = Div(t,I(2))  e = Mul(h,I(2))  y = Slice(table,I(0),e,I(1))", "Slice .* has an input 'e' that depends on data or"),
        (
            "n = Neg(t)  m = Mod(n,I(8))  p = Concat<axis=0>(I(0,0,0),m)  y = Pad(table,p)",
            "Pad .* has pads that depend on data or",
        ),
        ("n = Sub(t,I(64))  y = Expand(fours,n)", "Expand .* needs a size that no input has; fix the shapes"),
        ("n = Sub(t,I(20))  y = Expand(fours,n)", "Expand .* needs a size that no input has; fix the shapes"),
        ("y = Expand(patch,t)", "Expand: shape mismatch.*; if sizes are open, fix the shapes"),
        ("y = Slice(table,t,I(999),I(1))", "Slice .* bounds that are negative or behind the data for some sizes; fix"),
        ("y = Slice(places,I(0),t,I(0),I(2))", "Slice .* cuts at open sizes, with a step or from the end"),
    ],
)
def test_sizes_that_are_no_polynomials_of_open_sizes_raise(line, message, tmp_path):
    model = with_open_columns("s = Shape(table)  t = Gather(s,I(1))  " + line.replace("fours", "S(4)"))
    with pytest.raises(NotImplementedError, match=message):
        mx.contrib.onnx.import_model(saved(model, tmp_path))


def test_networks_that_halve_sizes_are_read_and_odd_sizes_are_seen(tmp_path):
    up = 'Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(half,,F(1,1,2,2))'
    half = "half = MaxPool<kernel_shape=[2,2],strides=[2,2]>(image)  "
    more = "more = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(image)  s = Shape(half)  e = Slice(s,I(2),I(3))  "
    data = {"image": drawn("image=3,4,6,10")["image"]}
    for lines in (f"{half}up = {up}  y = Concat<axis=1>(image,up)", half + more + "y = Slice(more,I(0),e,I(2))"):
        model = model_of(lines, 13)
        for axis, name in ((2, "height"), (3, "width")):
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
        if "up" in lines:
            got = outputs_of(mx.contrib.onnx.import_model(saved(model, tmp_path)), data)
            np.testing.assert_array_equal(got[0], run(model, data)[0])
    with pytest.raises(NotImplementedError, match=r"Slice .* needs a size that no input has"):
        mx.contrib.onnx.import_model(saved(model, tmp_path))


def small(path):
    nodes = "h = Conv<pads=[1,1,1,1],group=2>(image,w,b)  r = Relu(h)  p = GlobalAveragePool(r)  f = Flatten(p)"
    model = model_of(nodes + "  y = Gemm<transB=1>(f,fc,five)", 11)
    return model, saved(model, path)


def test_a_file_becomes_a_block_with_its_parameters(tmp_path):
    model, path = small(tmp_path)
    net = mx.contrib.onnx.import_to_gluon(path, mx.cpu())
    assert sorted(net.collect_params()) == ["b", "fc", "five", "w"]
    x = mx.nd.array(DATA["image"])
    np.testing.assert_allclose(net(x).asnumpy(), run(model, {"image": DATA["image"]})[0], rtol=1e-5, atol=1e-6)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = net(x).square().sum()
    loss.backward()
    trainer.step(2)
    assert not np.array_equal(net.collect_params()["w"].data().asnumpy(), WEIGHTS["w"])


def test_a_mask_in_a_file_is_not_trained(tmp_path):
    path = saved(model_of("h = Mul(table,four)  y = Where(flags,h,S(0))", 13), tmp_path)
    net = mx.contrib.onnx.import_to_gluon(path, mx.cpu())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    with mx.autograd.record():
        loss = net(mx.nd.array(DATA["table"])).sum()
    loss.backward()
    trainer.step(1)
    assert net.collect_params()["flags"].data().asnumpy().tolist() == [True, False, True, True]


def test_nodes_have_the_names_of_the_file_and_metadata_its_shapes(tmp_path):
    path = small(tmp_path)[1]
    symbol, args, aux = mx.contrib.onnx.import_model(path)
    assert symbol.list_arguments() == ["image", "w", "b", "fc", "five"] and sorted(args) == ["b", "fc", "five", "w"] and not aux
    assert [n.name for n in symbol.nodes() if n.op] == ["n0", "n1", "n2", "n3", "n4"]
    assert symbol.attr_dict()["w"]["__shape__"] == "(6, 2, 3, 3)"
    about = mx.contrib.onnx.get_model_metadata(path)
    assert about == {"input_tensor_data": [("image", (0, 4, 6, 6), 1)], "output_tensor_data": [("y", ())]}
    assert {"Convolution", "FullyConnected"} < set(mx.onnx.get_operator_support())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Hardmax(table)", r"node 'n0', Hardmax of opset 13, has no form in MXNet's operators; .*ONNX Runtime\."),
        ("com.acme.Foo(four)", "node 'n0', com.acme.Foo of opset 13, has no form in MXNet's operators"),
        ("CumSum<reverse=1>(rows,K64(1))", r"CumSum of opset 13, has \{'reverse': 1\}, which MXNet's"),
        ("TopK(rows,ids)", r"node 'n0', TopK of opset 13, has k that depend on data or shapes, and must be constant"),
        (
            'Conv<auto_pad="SAME_LOWER",strides=[2,2],group=2>(open,w)',
            "auto_pad=SAME_LOWER and strides, for images of any size; fix the shapes",
        ),
        ("LRN<size=2>(image)", "LRN of opset 13, has an even size; export it with an odd one"),
        ("GRU<hidden_size=4>(time,gru_w,gru_r)", "attributes that MXNet's RNN lacks"),
        (
            "r = Reshape(rows,I(5,-1))  Softmax(r)",
            r"node 'n0' cannot take inputs of shapes \(\(256, 3, 4\),\) .*leaves sizes open, fix",
        ),
        ('Resize<mode="linear">(image,,F(1,1,1.25,1))', "Resize .* resizes "),
        ('Resize<mode="linear",antialias=1>(image,,F(1,1,0.5,0.5))', "{'antialias': 1}"),
        ('Resize<mode="linear",keep_aspect_ratio_policy="not_larger">(image,,F(1,1,2,2))', "keep_aspect_ratio_policy"),
        ('Resize<mode="linear",coordinate_transformation_mode="tf_crop_and_resize">(image,four,F(1,1,2,2))', "tf_crop_and_"),
        ('Resize<mode="linear",coordinate_transformation_mode="half_pixel_symmetric">(image,,F(1,1,1.5,2))', "symmetric"),
        ('Resize<coordinate_transformation_mode="asymmetric",nearest_mode="floor">(image,,F(1,2,1,1))', "the axes 0 or 1"),
        ('Resize<mode="linear">(image,,,I(2,4,12,12))', "Resize of opset 13, resizes the axes 0 or 1"),
        ('Resize<mode="linear",axes=[2,3]>(image,,F(2,2))', "Resize of opset 13, has axes"),
        ('ScatterElements<axis=1,reduction="add">(table,ids,updates)', "{'reduction': 'add'}"),
        ("BatchNormalization<training_mode=1>(image,scale,four,mean,var)", "{'training_mode': 1}"),
        (
            'RNN<hidden_size=4,direction="bidirectional",activations=["Tanh","Relu"]>(time,rnn_w2,rnn_r2)',
            "attributes that MXNet's RNN lacks",
        ),
        ('Resize<mode="linear">(image,,F(1,1,0.16666667,1))', "Resize of opset 13, resizes "),
        ("ScatterElements<axis=1>(table,place,seven)", "has indices of shape .*, which differ elsewhere"),
        ("ScatterElements<axis=0>(table,ids,updates)", "has indices of shape .*, which differ elsewhere"),
        ("Expand(rows,ids)", "has an input 'ids' that depends on data or sizes, and must be constant"),
    ],
)
def test_what_has_no_form_is_named(line, message, tmp_path):
    model = model_of(line.replace("open", "image"), 13)
    if "open" in line:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    with pytest.raises(NotImplementedError, match=message):
        mx.contrib.onnx.import_model(saved(model, tmp_path))


def test_a_file_of_no_or_an_old_opset_raises(tmp_path):
    model = model_of("Relu(table)", 13)
    model.opset_import[0].domain = "com.acme"
    with pytest.raises(NotImplementedError, match="node 'n0', Relu of opset 0, has no form in MXNet's operators"):
        mx.contrib.onnx.import_model(saved(model, tmp_path))


def test_without_the_package_onnx_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"requires the package onnx; pip install 'jfit\[export\]'"):
        mx.contrib.onnx.import_model("net.onnx")
