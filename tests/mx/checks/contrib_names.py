"""Names of `mx.contrib`: text, mixed precision, the first autograd, iterators, callbacks."""

import collections
import os
import tempfile
import warnings

import numpy as np
from recorded_checks import raised


def file_of(*lines):
    path = os.path.join(tempfile.mkdtemp(), "vectors.txt")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    return path


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def check_count_tokens(mx):
    count = mx.contrib.text.utils.count_tokens_from_str
    text = " Life is great ! \n life is good . \n"
    counter = collections.Counter({"life": 2, "x": 1})
    updated = count(text, " ", "\n", True, counter)
    return {
        "plain": dict(count(text)),
        "lower": dict(count(text, to_lower=True)),
        "type": type(count(text)).__name__,
        "expressions": dict(count("*Life*is*great*!*\n*life*is*good*.*\n", r"\*", "\n", True)),
        "updated": dict(updated),
        "same counter": updated is counter,
        "tabs": dict(count("a\tb|c\ta", "\t", r"\|")),
        "empty": dict(count("")),
    }


def check_vocabulary(mx):
    text, counter = mx.contrib.text, collections.Counter(["a", "b", "b", "c", "c", "c", "some_word$"])
    values = {}
    settings = {
        "default": {},
        "most 2": {"most_freq_count": 2},
        "most none": {"most_freq_count": None},
        "most 0": {"most_freq_count": 0},
        "min 2": {"min_freq": 2},
        "min 100": {"min_freq": 100},
        "most 2, min 2": {"most_freq_count": 2, "min_freq": 2},
        "unknown": {"unknown_token": "<x>"},
        "reserved": {"reserved_tokens": ["<pad>", "b"]},
        "reserved, most": {"reserved_tokens": ["b"], "most_freq_count": 2},
        "reserved empty": {"reserved_tokens": []},
    }
    for name, options in settings.items():
        v = text.vocab.Vocabulary(counter, **options)
        values[name] = v.idx_to_token
        values[f"{name}, indices"] = v.token_to_idx
        values[f"{name}, reserved"] = v.reserved_tokens
        values[f"{name}, length"] = len(v)
    v = text.vocab.Vocabulary(counter, unknown_token="<unk>", reserved_tokens=["<pad>"])
    tuples = text.vocab.Vocabulary(collections.Counter([("a", "b"), ("a",), ("a",)]), unknown_token=("u",))
    values |= {
        "to_indices": v.to_indices("c"),
        "to_indices list": v.to_indices(["b", "nothing", "<pad>"]),
        "to_tokens": v.to_tokens(2),
        "to_tokens list": v.to_tokens([0, 1, 3]),
        "unknown token": v.unknown_token,
        "to_tokens out of range": raised(v.to_tokens, 100),
        "to_tokens of text": raised(v.to_tokens, ["a"]),
        "to_tokens of a list": raised(v.to_tokens, [0, 100]),
        "tuples": [list(t) for t in tuples.idx_to_token],
        "no counter": text.vocab.Vocabulary().idx_to_token,
        "min 0": raised(text.vocab.Vocabulary, counter, min_freq=0),
        "reserved twice": raised(text.vocab.Vocabulary, counter, reserved_tokens=["a", "a"]),
        "unknown reserved": raised(text.vocab.Vocabulary, counter, reserved_tokens=["<unk>"]),
        "list as counter": raised(text.vocab.Vocabulary, ["a"]),
        "keyword order": text.vocab.Vocabulary(counter, 2, 1, "<u>", ["r"]).idx_to_token,
    }
    return values


def check_embedding(mx):
    text = mx.contrib.text
    path = file_of("a 0.1 0.2 0.3 0.4 0.5", "b 0.6 0.7 0.8 0.9 1.0", "c 1 2 3 4 5")
    e = text.embedding.CustomEmbedding(path)
    with_unknown = text.embedding.CustomEmbedding(file_of("a 1 2", "<unk> 3 4", "b 5 6"))
    ones = text.embedding.CustomEmbedding(path, init_unknown_vec=mx.nd.ones)
    delimiter = text.embedding.CustomEmbedding(file_of("a,1,2", "b,3,4"), elem_delim=",")
    twice = quietly(text.embedding.CustomEmbedding, file_of("3 2", "a 1 2", "a 3 4", "b 5 6"))
    vocabulary = text.vocab.Vocabulary(collections.Counter(["a", "c", "d", "c"]), reserved_tokens=["<pad>"])
    chosen = text.embedding.CustomEmbedding(path, vocabulary=vocabulary)
    return {
        "length": len(e),
        "vec_len": e.vec_len,
        "tokens": e.idx_to_token,
        "indices": e.token_to_idx,
        "vectors": e.idx_to_vec,
        "one": e.get_vecs_by_tokens("b"),
        "list": e.get_vecs_by_tokens(["b", "a"]),
        "unknown": e.get_vecs_by_tokens("zz"),
        "list with unknown": e.get_vecs_by_tokens(["zz", "c"]),
        "upper": e.get_vecs_by_tokens(["A", "B"]),
        "lower": e.get_vecs_by_tokens(["A", "B"], lower_case_backup=True),
        "list of one": e.get_vecs_by_tokens(["a"]),
        "unknown in the file": with_unknown.idx_to_vec,
        "unknown in the file, tokens": with_unknown.idx_to_token,
        "init_unknown_vec": ones.idx_to_vec,
        "delimiter": delimiter.idx_to_vec,
        "header and double": twice.idx_to_token,
        "header and double, vectors": twice.idx_to_vec,
        "vocabulary": chosen.idx_to_vec,
        "vocabulary, tokens": chosen.idx_to_token,
        "vocabulary, reserved": chosen.reserved_tokens,
        "to_indices": e.to_indices(["c", "?"]),
        "to_tokens": e.to_tokens([1, 0]),
        "no file": raised(text.embedding.CustomEmbedding, path + ".none"),
        "a token alone": raised(text.embedding.CustomEmbedding, file_of("a 1 2", "b")),
        "other length": raised(text.embedding.CustomEmbedding, file_of("a 1 2", "b 1 2 3")),
        "list as vocabulary": raised(text.embedding.CustomEmbedding, path, vocabulary=["a"]),
        "unknown token": text.embedding.CustomEmbedding(file_of("a 1 2", "<u> 3 4"), unknown_token="<u>").idx_to_vec,
        "dtype": np.dtype(e.idx_to_vec.dtype).name,
        "is a vocabulary": isinstance(e, text.vocab.Vocabulary),
    }


def check_registered_embeddings(mx):
    text = mx.contrib.text

    @text.embedding.register
    class LocalNames(text.embedding._TokenEmbedding):
        def __init__(self, size=3, **kwargs):
            super().__init__(**kwargs)
            self.size = size

    names = text.embedding.get_pretrained_file_names("glove")
    return {
        "created": text.embedding.create("localnames", size=5).size,
        "any case": text.embedding.create("LocalNames").size,
        "glove": sorted(names),
        "has fasttext": "wiki.simple.vec" in text.embedding.get_pretrained_file_names("fasttext"),
        "unknown embedding": raised(text.embedding.get_pretrained_file_names, "glow"),
        "create unknown": raised(text.embedding.create, "glow"),
    }


def net_of(mx):
    net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=2, name="conv")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, name="bn"), act_type="relu", name="relu")
    net = mx.sym.FullyConnected(mx.sym.exp(net, name="exp"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def arrays_of(mx, net, **shapes):
    args, _, aux = net.infer_shape(**shapes)
    random = np.random.RandomState(3)

    def made(names, each):
        return {n: mx.nd.array(random.uniform(0.1, 0.5, s).astype("float32")) for n, s in zip(names, each, strict=True)}

    return made(net.list_arguments(), args), made(net.list_auxiliary_states(), aux)


def check_convert_symbol(mx):
    from_amp, net = mx.contrib.amp if hasattr(mx.contrib, "amp") else __import__("mxnet.contrib.amp").contrib.amp, net_of(mx)
    args, aux = arrays_of(mx, net, data=(2, 1, 5, 5))
    values = {}
    for dtype in ("float16", "bfloat16"):
        converted = from_amp.convert_symbol(net, dtype)
        values |= {
            f"{dtype} arguments": converted.list_arguments(),
            f"{dtype} aux": converted.list_auxiliary_states(),
            f"{dtype} outputs": converted.list_outputs(),
            f"{dtype} shapes": list(converted.infer_shape(data=(2, 1, 5, 5))[1]),
            f"{dtype} has casts": any("amp_cast" in n for n in converted.get_internals().list_outputs()),
            f"{dtype} saved": "amp_cast" in converted.tojson() if dtype == "float16" else False,
        }
    symbol = from_amp.convert_symbol(net, "float16", excluded_sym_names=["conv", "fc", "softmax", "exp"])
    values["excluded"] = symbol.list_arguments()
    values["other lists"] = from_amp.convert_symbol(
        net, "float16", target_dtype_ops=["FullyConnected"], fp32_ops=["exp", "SoftmaxOutput"]
    ).list_arguments()
    params = {k: v for k, v in args.items() if k not in ("data", "softmax_label")}
    _, new_args, new_aux = from_amp.convert_model(net, dict(params), dict(aux), "float16")
    values["names"] = sorted(new_args) + sorted(new_aux)
    values["dtypes"] = {n: np.dtype(v.dtype).name for n, v in sorted(new_args.items()) if "fc" in n or "conv" in n}
    values |= {
        "not a symbol": raised(from_amp.convert_symbol, 3),
        "float64": raised(from_amp.convert_symbol, net, "float64"),
        "in two lists": raised(from_amp.convert_symbol, net, "float16", ["exp"], ["exp"]),
        "params as a list": raised(from_amp.convert_model, net, [], {}),
    }
    return values


def check_amp_lists(mx):
    amp = mx.contrib.amp if hasattr(mx.contrib, "amp") else __import__("mxnet.contrib.amp").contrib.amp
    low = amp.list_lp16_ops("float16")
    values = {
        "low": sorted(low),
        "losses": amp.list_loss_output_functions("float16"),
        "conditional": [[a, b, list(c)] for a, b, c in amp.list_conditional_fp32_ops("float16")],
        "fp32 params": amp.list_lp16_use_fp32_params("float16"),
        "other dtype": raised(amp.list_lp16_ops, "int8"),
        "names": sorted(n for n in dir(amp) if n.split("_")[0] in ("init", "scale", "unscale", "convert", "list")),
    }
    for name in (
        "exp",
        "softmax",
        "BatchNorm",
        "Concat",
        "dot",
        "Pooling",
        "relu",
        "norm",
        "broadcast_add",
        "LayerNorm",
        "mean",
        "Dropout",
        "log_softmax",
        "elemwise_mul",
        "stack",
        "transpose",
        "Embedding",
        "topk",
        "sum",
    ):
        lists = {"fp32": amp.list_fp32_ops, "both": amp.list_lp16_fp32_ops, "widest": amp.list_widest_type_cast}
        values[name] = [k for k, names in lists.items() if name in names("float16")]
    for kind in ("int32", "uint8", "float32", "float16"):
        cast = [mx.nd.amp_cast(mx.nd.array([1, 2], dtype=kind), dtype=to) for to in ("float16", "float32")]
        values[f"amp_cast of {kind}"] = [np.dtype(a.dtype).name for a in cast]
    net = mx.sym.amp_cast(mx.sym.Variable("x"), dtype="float16")
    values["amp_cast types"] = [[np.dtype(t).name for t in net.infer_type(x=k)[1]] for k in ("float32", "int32", "uint8")]
    values["not initialized"] = raised(amp.init_trainer, 3)
    return values


def check_autograd(mx):
    old = mx.contrib.autograd

    def f(x, y):
        return x * y + mx.nd.exp(x)

    a, b = mx.nd.array([1.0, 2.0]), mx.nd.array([3.0, 4.0])
    grads, loss = old.grad_and_loss(f)(a, b)
    only = old.grad(f, argnum=1)(a, b)
    some = old.grad(f, argnum=[0])(a, b)
    x, g = mx.nd.array([2.0, 3.0]), mx.nd.zeros(2)
    old.mark_variables([x], [g])
    with old.train_section():
        inside = mx.autograd.is_recording(), mx.autograd.is_training()
        y = x * x
        with old.test_section():
            within = mx.autograd.is_recording(), mx.autograd.is_training()
    old.backward([y], [mx.nd.array([1.0, 10.0])])
    first = g.asnumpy()
    with old.TrainingStateScope(True):
        y = x * 3
    old.compute_gradient([y])
    before = old.set_is_training(False)
    return {
        "gradients": list(grads),
        "gradient 1": grads[1],
        "loss": loss,
        "argnum": only[0],
        "argnum list": some[0],
        "counts": [len(grads), len(only), len(some)],
        "inside": list(inside),
        "within": list(within),
        "backward": first,
        "compute_gradient": g,
        "before": before,
        "numpy": raised(old.grad(f), np.ones(2), np.ones(2)),
        "not a list": raised(old.backward, y),
    }


def check_io_and_tensorboard(mx):
    class Loader:
        def __iter__(self):
            x = np.arange(20, dtype="float32").reshape(5, 4)
            for low in (0, 2, 4):
                yield mx.nd.array(x[low : low + 2]), mx.nd.array(np.arange(5)[low : low + 2], dtype="int32")

    it = mx.contrib.io.DataLoaderIter(Loader(), data_name="x", label_name="y")
    batches = list(it)
    it.reset()
    again = list(it)
    half = mx.contrib.io.DataLoaderIter(Loader(), dtype="float16").next()
    it.reset()
    by_parts = [[it.iter_next(), it.getdata()[0].asnumpy()[:1], it.getlabel()[0].asnumpy()[:1], it.getpad()] for _ in range(3)]
    callback = mx.contrib.tensorboard.LogMetricsCallback("logs", prefix="train")
    written = []

    class Writer:
        def add_scalar(self, name, value, global_step=None):
            written.append([name, float(value), global_step])

    callback.summary_writer = Writer()
    metric = mx.metric.create("acc")
    metric.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.8, 0.2]])])
    callback(mx.model.BatchEndParam(epoch=2, nbatch=1, eval_metric=metric, locals=None))
    callback(mx.model.BatchEndParam(epoch=3, nbatch=1, eval_metric=None, locals=None))
    return {
        "data": [b.data[0] for b in batches[:2]],
        "by parts": [*by_parts, it.iter_next()],
        "data 0": batches[0].data[0],
        "label 1": batches[1].label[0],
        "rows of the last": batches[2].data[0].asnumpy()[:1],
        "shape of the last": batches[2].data[0].shape,
        "pads": [b.pad for b in batches],
        "again": len(again),
        "provide_data": list(it.provide_data[0][1]),
        "names": [it.provide_data[0][0], it.provide_label[0][0]],
        "batch_size": it.batch_size,
        "half": np.dtype(half.data[0].dtype).name,
        "half label": np.dtype(half.label[0].dtype).name,
        "label dtype": np.dtype(batches[0].label[0].dtype).name,
        "written": written,
        "prefix": callback.prefix,
    }


def check_names(mx):
    def has(module, names):
        return {n: hasattr(module, n) for n in names.split()}

    contrib = mx.contrib
    return {
        "contrib": has(contrib, "autograd io nd ndarray onnx quant quantization sym symbol tensorboard text"),
        "autograd": has(
            contrib.autograd,
            "TrainingStateScope backward compute_gradient grad grad_and_loss mark_variables "
            "set_is_training test_section train_section",
        ),
        "io": has(contrib.io, "DataLoaderIter"),
        "onnx": has(contrib.onnx, "export_model import_model get_model_metadata import_to_gluon"),
        "quantization": has(
            contrib.quantization, "quantize_model quantize_net quantize_net_v2 quantize_graph calib_graph quantize_model_mkldnn"
        ),
        "tensorboard": has(contrib.tensorboard, "LogMetricsCallback"),
        "text": has(contrib.text, "embedding utils vocab"),
        "embedding": has(
            contrib.text.embedding,
            "CustomEmbedding FastText GloVe create get_pretrained_file_names register",
        ),
        "image": has(
            mx.image,
            "CreateDetAugmenter CreateMultiRandCropAugmenter DetAugmenter DetBorrowAug DetHorizontalFlipAug "
            "DetRandomCropAug DetRandomPadAug DetRandomSelectAug ImageDetIter imrotate random_rotate",
        ),
        "nd": has(contrib.nd, "box_nms MultiBoxPrior ROIAlign quadratic"),
        "sym": has(contrib.sym, "box_nms MultiBoxPrior ROIAlign quadratic"),
        "onnx module": has(mx.onnx, "export_model"),
    }
