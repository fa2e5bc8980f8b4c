// Convolution of float32 images and its two gradients by oneDNN, as a handler of XLA's foreign function interface.
// Images are (batch, height, width, channels), weights (height, width, channels / groups, filters).

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using dnnl::memory;
using Buffer = ffi::BufferR4<ffi::F32>;
using Result = ffi::ResultBufferR4<ffi::F32>;
using Sizes = ffi::Span<const int64_t>;

enum Mode { kForward, kToData, kToWeight };  // inputs: (data, weight), (gradient, weight), (data, gradient)

struct Step {  // a primitive with the layouts it wants: images are never reordered, the weight is
  dnnl::primitive primitive;
  memory::desc weight, scratchpad;
};

const memory::data_type kFloat = memory::data_type::f32;

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::dims Dims(Sizes sizes) { return memory::dims(sizes.begin(), sizes.end()); }

memory::desc Images(Sizes n) {
  return {{n[0], n[3], n[1], n[2]}, kFloat, memory::format_tag::nhwc};
}

float* Reserve(std::vector<float>& buffer, size_t bytes) {
  if (buffer.size() * sizeof(float) < bytes) buffer.resize(bytes / sizeof(float) + 1);
  return buffer.data();
}

Step Make(int64_t mode, memory::desc data, memory::dims weight, memory::desc out, Sizes stride, Sizes low, Sizes high,
          memory::dims dilate) {
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const memory::desc any(weight, kFloat, memory::format_tag::any);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::convolution_forward::primitive_desc forward(Engine(), dnnl::prop_kind::forward_training, algorithm, data, any, out,
                                                    Dims(stride), dilate, Dims(low), Dims(high), attr);
  if (mode == kForward) return {dnnl::convolution_forward(forward), forward.weights_desc(), forward.scratchpad_desc()};
  if (mode == kToData) {
    dnnl::convolution_backward_data::primitive_desc backward(Engine(), algorithm, data, any, out, Dims(stride), dilate,
                                                             Dims(low), Dims(high), forward, attr);
    return {dnnl::convolution_backward_data(backward), backward.weights_desc(), backward.scratchpad_desc()};
  }
  dnnl::convolution_backward_weights::primitive_desc backward(Engine(), algorithm, data, any, out, Dims(stride), dilate,
                                                              Dims(low), Dims(high), forward, attr);
  return {dnnl::convolution_backward_weights(backward), backward.diff_weights_desc(), backward.scratchpad_desc()};
}

ffi::Error Convolve(Buffer first, Buffer second, Result result, int64_t mode, int64_t groups, Sizes data, Sizes weight,
                    Sizes out, Sizes stride, Sizes low, Sizes high, Sizes dilate) {
  const int64_t h = weight[0], w = weight[1], in = weight[2], filters = weight[3], per = filters / groups;
  const bool grouped = groups > 1;
  const memory::dims sizes = grouped ? memory::dims{groups, per, in, h, w} : memory::dims{filters, in, h, w};
  const memory::dims strides = grouped ? memory::dims{per, 1, filters, w * in * filters, in * filters}
                                       : memory::dims{1, filters, w * in * filters, in * filters};
  const memory::desc images = Images(data), outputs = Images(out), given(sizes, kFloat, strides);

  static std::mutex mutex;
  static std::unordered_map<std::string, Step> steps;
  std::string key(reinterpret_cast<const char*>(&mode), sizeof mode);
  key.append(reinterpret_cast<const char*>(&groups), sizeof groups);
  for (Sizes part : {data, weight, out, stride, low, high, dilate})
    key.append(reinterpret_cast<const char*>(part.begin()), part.size() * sizeof(int64_t));
  Step* step;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = steps.find(key);
    if (found == steps.end())
      found = steps.emplace(key, Make(mode, images, sizes, outputs, stride, low, high, {dilate[0] - 1, dilate[1] - 1})).first;
    step = &found->second;
  }
  static thread_local dnnl::stream stream(Engine());
  static thread_local std::vector<float> scratch_buffer, weight_buffer;
  memory scratch(step->scratchpad, Engine(), Reserve(scratch_buffer, step->scratchpad.get_size()));
  memory theirs(given, Engine(), mode == kToWeight ? result->typed_data() : second.typed_data()), own = theirs;
  const bool reorders = step->weight != given;
  if (reorders) own = memory(step->weight, Engine(), Reserve(weight_buffer, step->weight.get_size()));
  if (reorders && mode != kToWeight) dnnl::reorder(theirs, own).execute(stream, theirs, own);
  std::unordered_map<int, memory> args = {{DNNL_ARG_SCRATCHPAD, scratch}};
  if (mode == kForward) {
    args.insert({{DNNL_ARG_SRC, {images, Engine(), first.typed_data()}}, {DNNL_ARG_WEIGHTS, own},
                 {DNNL_ARG_DST, {outputs, Engine(), result->typed_data()}}});
  } else if (mode == kToData) {
    args.insert({{DNNL_ARG_DIFF_DST, {outputs, Engine(), first.typed_data()}}, {DNNL_ARG_WEIGHTS, own},
                 {DNNL_ARG_DIFF_SRC, {images, Engine(), result->typed_data()}}});
  } else {
    args.insert({{DNNL_ARG_SRC, {images, Engine(), first.typed_data()}},
                 {DNNL_ARG_DIFF_DST, {outputs, Engine(), second.typed_data()}}, {DNNL_ARG_DIFF_WEIGHTS, own}});
  }
  step->primitive.execute(stream, args);
  if (reorders && mode == kToWeight) dnnl::reorder(own, theirs).execute(stream, own, theirs);
  stream.wait();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(Convolution, Convolve,
                              ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>("mode")
                                  .Attr<int64_t>("groups").Attr<Sizes>("data").Attr<Sizes>("weight").Attr<Sizes>("out")
                                  .Attr<Sizes>("stride").Attr<Sizes>("low").Attr<Sizes>("high").Attr<Sizes>("dilate"));
