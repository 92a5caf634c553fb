#include "proto5_codegen/compiled_ahead.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "common/backends/cuda/tensor_map.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"

namespace attn {
namespace {

constexpr const char* folder = "proto5_codegen/generated";
constexpr const char* arch = "sm_90a";  // the architecture that proto5_codegen/tools/generate_cuda.py compiles for

/// Maps the name of a generator in a case to the name of its Python package.
const std::map<std::string, std::string, std::less<>> packages = {
    {"triton", "triton"}, {"tilelang", "tilelang"}, {"halide_gpu", "halide"}};

AheadParameter::Kind kind_of(const std::string& name) {
  static const std::map<std::string, AheadParameter::Kind> kinds = {{"tensor_map", AheadParameter::tensor_map},
                                                                    {"pointer", AheadParameter::pointer},
                                                                    {"null", AheadParameter::null},
                                                                    {"int32", AheadParameter::int32},
                                                                    {"int64", AheadParameter::int64},
                                                                    {"float", AheadParameter::number}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) throw BadInput(fmt::format("'{}' is no kind of parameter", name));
  return found->second;
}

AheadParameter parse_parameter(const Json& text) {
  AheadParameter parameter;
  parameter.kind = kind_of(text.at("kind"));
  if (text.contains("tensor")) parameter.tensor = text["tensor"];
  if (text.contains("of")) parameter.of = text["of"].get<std::vector<std::string>>();
  if (text.contains("per")) parameter.per = text["per"];
  if (parameter.per < 1) throw BadInput("a parameter has 'per' below 1");
  if (parameter.kind == AheadParameter::tensor_map) {
    parameter.rows = text.at("rows");
    parameter.columns = text.at("columns");
    parameter.box_rows = text.at("box").at(0);
    parameter.box_columns = text.at("box").at(1);
    parameter.swizzle = text.at("swizzle");
  }
  return parameter;
}

AheadKernel parse_kernel(const Json& text) {
  AheadKernel kernel;
  kernel.file = text.at("file");
  kernel.cubin_sha256 = text.at("cubin_sha256");
  kernel.entry = text.at("entry");
  const Json& problem = text.at("problem");
  kernel.work = problem.at("work");
  kernel.dtype = problem.at("dtype");
  kernel.head_dim = problem.at("head_dim");
  kernel.causal = problem.at("causal");
  kernel.most_kv_len = text.at("most_kv_len");
  kernel.kv_len_multiple = text.at("kv_len_multiple");
  for (const Json& side : text.at("grid")) {
    kernel.grid.push_back({side.at("of").get<std::vector<std::string>>(), side.at("per")});
    if (kernel.grid.back().per < 1) throw BadInput("a dimension of the grid has 'per' below 1");
  }
  if (kernel.grid.empty() || kernel.grid.size() > 3) throw BadInput("a grid must have one to three dimensions");
  kernel.threads = text.at("threads");
  kernel.threadgroup_bytes = text.at("threadgroup_bytes");
  for (const Json& parameter : text.at("parameters")) kernel.parameters.push_back(parse_parameter(parameter));
  kernel.tile = text.at("tile");
  kernel.search = text.at("search");
  kernel.compile_s = text.at("compile_s");
  kernel.source_lines = text.at("source_lines");
  return kernel;
}

std::map<std::string, int64_t> lengths_of(const CodegenCase& config) {
  const AttentionShape& shape = config.shape;
  return {{"all_heads", config.heads()},
          {"q_len", shape.q_len},
          {"kv_len", shape.kv_len},
          {"head_dim", shape.head_dim},
          {"all_rows", config.heads() * shape.q_len}};
}

int64_t product_of(const std::map<std::string, int64_t>& lengths, const std::vector<std::string>& names) {
  int64_t product = 1;
  for (const std::string& name : names) {
    const auto found = lengths.find(name);
    if (found == lengths.end()) throw BadInput(fmt::format("'{}' is no length that a kernel can take", name));
    product *= found->second;
  }
  return product;
}

/// Returns the product of the named lengths, divided by `per` and rounded up.
int64_t parts_of(const std::map<std::string, int64_t>& lengths, const std::vector<std::string>& names, int64_t per) {
  return (product_of(lengths, names) + per - 1) / per;
}

const void* pointer_to(const std::string& tensor, const CodegenParams& pointers) {
  const std::map<std::string, const void*> known = {{"q", pointers.q},     {"k", pointers.k},
                                                    {"v", pointers.v},     {"in", pointers.in},
                                                    {"out", pointers.out}, {"slopes", pointers.slopes}};
  const auto found = known.find(tensor);
  if (found == known.end()) throw BadInput(fmt::format("'{}' is no tensor that a kernel can take", tensor));
  return found->second;
}

TensorMap map_of(const AheadParameter& parameter, const CodegenCase& config, const CodegenParams& pointers,
                 const std::map<std::string, int64_t>& lengths) {
  const auto length = [&](const std::string& name) { return static_cast<uint64_t>(product_of(lengths, {name})); };
  const uint64_t rows = length(parameter.rows), columns = length(parameter.columns);
  const auto element = static_cast<uint64_t>(size_bytes(config.dtype));
  const std::map<int, Swizzle> swizzles = {
      {0, Swizzle::none}, {32, Swizzle::bytes_32}, {64, Swizzle::bytes_64}, {128, Swizzle::bytes_128}};
  const auto swizzle = swizzles.find(parameter.swizzle);
  if (swizzle == swizzles.end())
    throw BadInput(fmt::format("swizzle {} is not allowed; allowed are 0, 32, 64 and 128", parameter.swizzle));
  return make_tensor_map({.base = pointer_to(parameter.tensor, pointers),
                          .element = config.dtype == DType::f32 ? F32 : BF16,
                          .dims = {columns, rows, length("all_heads")},
                          .strides_bytes = {columns * element, columns * rows * element},
                          .box = {parameter.box_columns, parameter.box_rows, 1},
                          .swizzle = swizzle->second});
}

}  // namespace

AheadIndex parse_ahead_index(const std::string& text, const std::string& name) {
  std::string place = "the index";
  try {
    const Json parsed = parse_json(text);
    AheadIndex index;
    index.generator = parsed.at("generator");
    index.version = parsed.at("version");
    index.source_sha256 = parsed.at("source_sha256");
    for (const Json& kernel : parsed.at("kernels")) {
      place = fmt::format("kernel {}", index.kernels.size());
      index.kernels.push_back(parse_kernel(kernel));
    }
    return index;
  } catch (const Json::exception& error) {
    throw BadInput(
        fmt::format("{}: {} is not as proto5_codegen/tools/generate_cuda.py writes it: {}", name, place, error.what()));
  } catch (const BadInput& error) {
    throw BadInput(fmt::format("{}: {}: {}", name, place, error.what()));
  }
}

std::optional<AheadIndex> read_ahead_index(const std::string& generator) {
  const std::string name = fmt::format("{}/{}.json", folder, packages.at(generator));
  const std::optional<std::string> text = read_file(std::filesystem::path(source_root()) / name);
  if (!text) return std::nullopt;
  return parse_ahead_index(*text, name);
}

const AheadKernel* find_ahead(const AheadIndex& index, const CodegenCase& config) {
  const std::string work = work_names()[config.work], dtype = config.dtype == DType::f32 ? "f32" : "bf16";
  const AheadKernel* found = nullptr;
  for (const AheadKernel& kernel : index.kernels) {
    const bool same = kernel.work == work && kernel.dtype == dtype && kernel.head_dim == config.shape.head_dim &&
                      (kernel.causal != 0) == config.shape.causal;
    if (!same || (kernel.most_kv_len > 0 && kernel.most_kv_len < config.shape.kv_len)) continue;
    if (!found || kernel.most_kv_len < found->most_kv_len) found = &kernel;
  }
  return found;
}

bool is_ahead(std::string_view generator) { return packages.contains(generator); }

Plan ahead_plan(const CodegenCase& config, const DeviceInfo& device) {
  const auto unable = [&](const std::string& why) {
    return Plan{.unable = fmt::format("generator {}: {}", config.generator, why)};
  };
  const std::optional<AheadIndex> index = read_ahead_index(config.generator);
  if (!index) {
    return unable(
        fmt::format("no kernels in {}; proto5_codegen/tools/generate_cuda.py makes them with the Python "
                    "package {}",
                    folder, packages.at(config.generator)));
  }
  if (device.arch != arch)
    return unable(fmt::format("its kernels are for {}, {} has {}", arch, device.spec, device.arch));
  const AheadKernel* const kernel = find_ahead(*index, config);
  const std::string wanted =
      fmt::format("{} in {}, head_dim {}, {} keys", work_names()[config.work],
                  config.dtype == DType::f32 ? "f32" : "bf16", config.shape.head_dim, config.shape.kv_len);
  if (!kernel) return unable(fmt::format("{} {} made no kernel of {}", index->generator, index->version, wanted));
  if (config.shape.kv_len % kernel->kv_len_multiple != 0) {
    return unable(fmt::format("its kernel of {} takes multiples of {} keys", kernel->work, kernel->kv_len_multiple));
  }
  Launch launch;
  launch.source = {.path = fmt::format("{}/{}", folder, kernel->file), .entry = kernel->entry};
  if (!std::filesystem::exists(std::filesystem::path(source_root()) / launch.source.path)) {
    return unable(fmt::format("{} is not there; proto5_codegen/tools/generate_cuda.py makes it", launch.source.path));
  }
  const auto lengths = lengths_of(config);
  const auto side = [&](size_t i) {
    if (i >= kernel->grid.size()) return uint32_t{1};
    return static_cast<uint32_t>(parts_of(lengths, kernel->grid[i].of, kernel->grid[i].per));
  };
  launch.grid = {side(0), side(1), side(2)};
  launch.threads = kernel->threads;
  launch.threadgroup_bytes = kernel->threadgroup_bytes;
  launch.phase = kernel->work;
  return {.launches = {launch}};
}

Arguments ahead_arguments(const AheadKernel& kernel, const CodegenCase& config, const CodegenParams& pointers) {
  const auto lengths = lengths_of(config);
  Arguments arguments;
  for (const AheadParameter& parameter : kernel.parameters) {
    switch (parameter.kind) {
      case AheadParameter::tensor_map:
        arguments.add(map_of(parameter, config, pointers, lengths));
        break;
      case AheadParameter::pointer:
        arguments.add(pointer_to(parameter.tensor, pointers));
        break;
      case AheadParameter::null:
        arguments.add(static_cast<const void*>(nullptr));
        break;
      case AheadParameter::int32:
        arguments.add(static_cast<int32_t>(parts_of(lengths, parameter.of, parameter.per)));
        break;
      case AheadParameter::int64:
        arguments.add(parts_of(lengths, parameter.of, parameter.per));
        break;
      case AheadParameter::number:
        if (parameter.of == std::vector<std::string>{"scale"}) {
          arguments.add(pointers.scale);
        } else if (parameter.of == std::vector<std::string>{"cap"}) {
          arguments.add(static_cast<float>(soft_cap));
        } else {
          throw BadInput(fmt::format("{}: the value of a float parameter must be 'scale' or 'cap'", kernel.file));
        }
    }
  }
  return arguments;
}

}  // namespace attn
