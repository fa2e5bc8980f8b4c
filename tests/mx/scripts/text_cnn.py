"""A convolutional network for sentences: embeddings, filters of three widths, max pooling over time, by executor."""

import mxnet as mx
import numpy as np

vocab, length, embed, filters, classes, batch = 30, 12, 8, 6, 2, 25
rng = np.random.RandomState(71)
x = rng.randint(2, vocab, (250, length))
y = rng.randint(0, classes, 250)
for row, label in zip(x, y):
    k = rng.randint(0, length - 2)
    row[k : k + 3] = [5, 6, 7] if label else [7, 6, 5]


def make_text_cnn(filter_list=(2, 3, 4)):
    input_x = mx.sym.Variable("data")
    input_y = mx.sym.Variable("softmax_label")
    embed_layer = mx.sym.Embedding(data=input_x, input_dim=vocab, output_dim=embed, name="vocab_embed")
    conv_input = mx.sym.Reshape(data=embed_layer, target_shape=(batch, 1, length, embed))
    pooled_outputs = []
    for size in filter_list:
        conv = mx.sym.Convolution(data=conv_input, kernel=(size, embed), num_filter=filters, name="conv%d" % size)
        relu = mx.sym.Activation(data=conv, act_type="relu")
        pool = mx.sym.Pooling(data=relu, pool_type="max", kernel=(length - size + 1, 1), stride=(1, 1))
        pooled_outputs.append(pool)
    concat = mx.sym.Concat(*pooled_outputs, dim=1)
    h_pool = mx.sym.Reshape(data=concat, target_shape=(batch, filters * len(filter_list)))
    fc = mx.sym.FullyConnected(data=h_pool, num_hidden=classes, name="cls")
    return mx.sym.SoftmaxOutput(data=fc, label=input_y, name="softmax")


cnn = make_text_cnn()
arg_names = cnn.list_arguments()
arg_shape, out_shape, aux_shape = cnn.infer_shape(data=(batch, length), softmax_label=(batch,))
print("outputs:", cnn.list_outputs(), out_shape)
arg_arrays = [mx.nd.zeros(s, mx.cpu()) for s in arg_shape]
args_grad = {n: mx.nd.zeros(s, mx.cpu()) for n, s in zip(arg_names, arg_shape) if n not in ("data", "softmax_label")}
cnn_exec = cnn.bind(ctx=mx.cpu(), args=arg_arrays, args_grad=args_grad, grad_req="add")

param_blocks = []
arg_dict = dict(zip(arg_names, cnn_exec.arg_arrays))
for i, name in enumerate(arg_names):
    if name in ("data", "softmax_label"):
        continue
    arg_dict[name][:] = np.random.RandomState(100 + i).uniform(-0.2, 0.2, arg_dict[name].shape)
    param_blocks.append((i, arg_dict[name], args_grad[name], name))

opt = mx.optimizer.create("rmsprop", learning_rate=0.01, rescale_grad=1.0 / batch)
updater = mx.optimizer.get_updater(opt)
for epoch in range(5):
    correct = total = 0
    for start in range(0, len(x), batch):
        arg_dict["data"][:] = x[start : start + batch]
        arg_dict["softmax_label"][:] = y[start : start + batch]
        cnn_exec.forward(is_train=True)
        cnn_exec.backward()
        correct += int((np.argmax(cnn_exec.outputs[0].asnumpy(), axis=1) == y[start : start + batch]).sum())
        total += batch
        norm = np.sqrt(sum(mx.nd.norm(grad).asscalar() ** 2 for _, _, grad, _ in param_blocks))
        for index, weight, grad, _ in param_blocks:
            if norm > 5.0:
                grad *= 5.0 / norm
            updater(index, grad, weight)
            grad[:] = 0.0  # the gradient is added up: grad_req="add"
    print("Iter [%d] Train: accuracy %.3f, last norm %.6f" % (epoch, correct * 100.0 / total, norm))
