#include "common/backends/metal/device.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "common/backends/metal/buffers.h"
#include "common/backends/metal/gpu.h"
#include "common/backends/metal/operations.h"
#include "common/backends/metal/table.h"
#include "common/backends/metal/text.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/sha256.h"
#include "common/base/stopwatch.h"
#include "common/base/temporary_folder.h"
#include "common/device/kernels/probe.h"

namespace attn {

namespace {

// A device waits at most this long for a command buffer (compare cuda/device.cpp).
constexpr std::chrono::seconds deadline{10};

// If a queue has 64 command buffers that have not completed, MTLCommandQueue::commandBuffer() waits without an end.
constexpr size_t most_buffers = 60;

// Metal copies at most this many bytes of an argument into a command. A kernel has at most this many arguments.
constexpr size_t most_argument_bytes = 4096, most_arguments = 31;

// Raise this number when compile() changes, so that the kernels in the caches are compiled anew.
constexpr int recipe = 2;

/// Returns an ending of names that no program has used before.
std::string new_ending() {
  static const unsigned process = std::random_device()();
  static std::atomic<unsigned> number = 0;
  return fmt::format("_anew_{:08x}_{}", process, number++);
}

/// Returns the line of a compiler's log that says what is wrong. Metal's logs begin with a line that does not.
std::string mistake_in(std::string_view log) {
  std::string first;
  while (!log.empty()) {
    const std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(line.size() + 1, log.size()));
    if (line.find("error:") != line.npos) return std::string(line);
    if (first.empty() && line.find_first_not_of(" \t\r") != line.npos) first = line;
  }
  return first;
}

/// What Metal needs to make a kernel. Binary::code is its text: a line of JSON, the texts, and the archive.
struct Program {
  struct Part {
    std::string entry, text;
  };
  int language = 310;
  Linking linking = Linking::before_optimizer;
  std::vector<Part> parts = {};  // the kernel, then the functions to link it with
  std::string ending = {};       // of the names that the functions have for Metal
  std::string archive = {};      // an MTLBinaryArchive with the machine code; empty if a constant is set at run time

  /// Gives the functions names that Metal has not compiled. Metal keeps on disk what it compiled, and finds it by the
  /// text, or by the code of a function, which has the function's name. So compile() measures no look-up.
  void rename() {
    ending = new_ending();
    std::string names;
    for (const Part& part : parts) names += fmt::format("#define {0} {0}{1}\n", part.entry, ending);
    for (Part& part : parts) part.text.insert(part.text.find('\n') + 1, names);
  }

  std::string code() const {
    Json entries = Json::array(), bytes = Json::array();
    std::string texts;
    for (const Part& part : parts) {
      entries.push_back(part.entry);
      bytes.push_back(part.text.size());
      texts += part.text;
    }
    const Json head = {{"language", language},
                       {"before_optimizer", linking == Linking::before_optimizer},
                       {"ending", ending},
                       {"entries", entries},
                       {"bytes", bytes}};
    return head.dump() + "\n" + texts + archive;
  }
  /// Throws CompileError if `code` is not what code() returns.
  static Program of(std::string_view code) {
    const size_t end = code.find('\n');
    const Json head = parse_json(code.substr(0, end), false);
    if (end == code.npos || head.is_discarded()) throw CompileError("the binary is no kernel for Metal");
    code.remove_prefix(end + 1);
    Program program;
    program.language = head.at("language");
    program.ending = head.at("ending");
    program.linking = head.at("before_optimizer") ? Linking::before_optimizer : Linking::after_code_generation;
    for (size_t i = 0; i < head.at("entries").size(); ++i) {
      const size_t bytes = std::min(head.at("bytes")[i].get<size_t>(), code.size());
      program.parts.push_back({head.at("entries")[i], std::string(code.substr(0, bytes))});
      code.remove_prefix(bytes);
    }
    program.archive = code;
    return program;
  }
};

class MetalKernel : public TableKernel {
 public:
  MetalKernel(std::string entry, Owned<MTL::ComputePipelineState> made, std::shared_ptr<Gpu> gpu,
              Owned<MTL::VisibleFunctionTable> functions)
      : name(std::move(entry)), pipeline(std::move(made)), gpu_(std::move(gpu)), table_(std::move(functions)) {
    if (table_) gpu_->keep_resident(*table_.get());
  }
  ~MetalKernel() override {
    const Pool pool;  // for what Metal releases later
    if (table_) gpu_->release_resident(*table_.get());
    table_.reset();
    pipeline.reset();
  }
  MetalKernel(const MetalKernel&) = delete;
  MetalKernel& operator=(const MetalKernel&) = delete;

  uint64_t table() const override { return table_ ? table_->gpuResourceID()._impl : 0; }

  const std::string name;
  Owned<MTL::ComputePipelineState> pipeline;

 private:
  const std::shared_ptr<Gpu> gpu_;  // lives longer than the pipeline
  Owned<MTL::VisibleFunctionTable> table_;
};

std::string names_of(const std::vector<CommandEncoder::Command>& commands) {
  std::string text;
  for (const CommandEncoder::Command& command : commands) {
    const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command);
    if (!dispatch) continue;
    const std::string& name = static_cast<const MetalKernel*>(dispatch->kernel)->name;
    if (text.find(name) == std::string::npos) text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "a fill" : text;
}

class MetalDevice : public Device, public BufferDevice {
 public:
  MetalDevice() : gpu_(Gpu::shared()) {
    const Pool pool;
    MTL::Device& metal = gpu_->metal();
    queue_.commands = NS::TransferPtr(metal.newCommandQueue());
    queue_.fence = NS::TransferPtr(metal.newFence());
    if (!queue_.commands || !queue_.fence) throw DeviceMissing("metal: the GPU takes no further command queue");
    gpu_->make_resident(*queue_.commands.get());
    const std::string system = text_of(NS::ProcessInfo::processInfo()->operatingSystemVersionString());
    info_.spec = info_.backend = "metal";
    info_.operations = &metal_operations();
    info_.dlpack_type = 8;
    info_.name = text_of(metal.name());
    info_.arch = text_of(metal.architecture()->name());
    info_.toolchain = "Metal of macOS " + system;
    if (gpu_->is_macos_15()) info_.features.emplace_back(metal_3_2);
    if (metal.supportsFunctionPointers()) info_.features.emplace_back(metal_tables);
    if (metal.supportsDynamicLibraries()) info_.features.emplace_back(metal_libraries);
    info_.features.emplace_back(metal_graphs);
    info_.units = Gpu::cores();
    info_.simd_width = 32;  // probe() checks it
    most_threadgroup_bytes_ = metal.maxThreadgroupMemoryLength();
    info_.threadgroup_memory_bytes = most_threadgroup_bytes_;
    info_.last_level_cache_bytes = size_t{8} << 20;  // Metal does not report it
    info_.memory_bytes = metal.recommendedMaxWorkingSetSize();
    probe();
  }

  void* allocate(size_t bytes) override { return gpu_->allocate(bytes, buffer_alignment); }
  void release(void* pointer) noexcept override { gpu_->release(pointer); }
  double available_bytes() const override { return gpu_->available_bytes(); }
  void upload(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(host_of(target, bytes), source, bytes);
  }
  void download(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, host_of(source, bytes), bytes);
  }

  void* borrow(void* buffer) override { return gpu_->borrow(*static_cast<MTL::Buffer*>(buffer)); }
  void give_back(void* buffer) noexcept override { gpu_->give_back(*static_cast<MTL::Buffer*>(buffer)); }
  std::pair<void*, uint64_t> buffer_of(const void* address) const override {
    const Gpu::Place place = gpu_->place_of(address, 0);
    return {place.buffer, place.offset};
  }

  std::string compiler_identity() const override {
    return fmt::format("{}, {} ({}), recipe {}", info_.toolchain, info_.name, info_.arch, recipe);
  }

  Binary compile(const KernelSource& source, const CompileOptions& /*options*/) override {
    const Pool pool;
    Program program{
        .language = metal_language(source), .linking = source.linking, .parts = {{source.entry, metal_text(source)}}};
    for (const KernelSource& part : source.fragments) program.parts.push_back({part.entry, metal_text(part)});
    Binary binary;
    binary.key = source.key();
    binary.source_sha256 = source_sha256(source);
    binary.code_sha256 = sha256(compiler_identity() + "\n" + program.code());  // the machine code has new names
    binary.run_time = source.run_time_values();
    program.rename();
    Stopwatch stopwatch;
    const auto descriptor = describe(program, binary.run_time, binary.key);
    binary.times.front_end_s = stopwatch.lap();
    // An archive has the machine code of one set of function constants. Some virtual GPUs make none; load() then
    // compiles again. If the kernel is wrong, pipeline_of() says so.
    std::string no_archive;
    if (binary.run_time.begin() == binary.run_time.end()) {
      try {
        const auto archive = archive_of(*descriptor.get(), binary.key);
        binary.times.code_generation_s = stopwatch.lap();
        program.archive = content_of(*archive.get(), binary.key);
      } catch (const CompileError& error) {
        no_archive = error.log();
      }
    }
    const auto pipeline = pipeline_of(*descriptor.get(), binary.key);
    if (program.archive.empty()) binary.times.code_generation_s = stopwatch.lap();
    if (!no_archive.empty()) spdlog::warn("{}: Metal makes no archive: {}", binary.key, no_archive);
    binary.threadgroup_bytes = static_cast<int64_t>(pipeline->staticThreadgroupMemoryLength());
    binary.code = program.code();
    return binary;
  }

  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    const Pool pool;
    const Program program = Program::of(binary.code);
    const auto descriptor = describe(program, binary.run_time, entry);
    Owned<MTL::ComputePipelineState> pipeline;
    std::optional<TemporaryFolder> folder;  // of the archive's file, which Metal may read when it makes the pipeline
    if (!program.archive.empty()) {
      const auto archive = open_archive(folder.emplace(), program.archive, entry);
      const NS::Object* const one = archive.get();
      descriptor->setBinaryArchives(NS::Array::array(&one, 1));
      NS::Error* error = nullptr;
      const MTL::PipelineOption only_archived = MTL::PipelineOptionFailOnBinaryArchiveMiss;
      pipeline =
          NS::TransferPtr(gpu_->metal().newComputePipelineState(descriptor.get(), only_archived, nullptr, &error));
      // Without the warning, the time to compile would count as the time to load.
      if (!pipeline) spdlog::warn("{}: Metal compiles it again: {}", entry, text_of(error));
    }
    if (!pipeline) pipeline = pipeline_of(*descriptor.get(), entry);
    auto table = has_function_table(program.parts.front().text) ? table_of(*pipeline.get(), *descriptor.get(), entry)
                                                                : Owned<MTL::VisibleFunctionTable>();
    return std::make_unique<MetalKernel>(entry, std::move(pipeline), gpu_, std::move(table));
  }

  std::vector<double> submit(const CommandEncoder& encoder) override {
    const std::lock_guard lock(submitting_);
    if (lost()) throw DeviceLost(info_.spec + " is lost to this process");
    const Pool pool;
    Submission submission(*this, encoder);
    return submission.run();
  }

 private:
  std::byte* host_of(const void* address, size_t bytes) const {
    std::byte* const host = gpu_->place_of(address, bytes).host;
    if (!host) throw BadInput("metal: a tensor's MTLBuffer is private; this call needs a shared one");
    return host;
  }

  // ---- compiling

  Owned<MTL::Library> library_of(const std::string& text, int language, const std::string& key,
                                 const std::vector<const NS::Object*>& libraries, const std::string& install_name) {
    const auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
    options->setLanguageVersion(language >= 320 ? MTL::LanguageVersion3_2 : MTL::LanguageVersion3_1);
    if (gpu_->is_macos_15()) {
      options->setMathMode(MTL::MathModeSafe);
      options->setMathFloatingPointFunctions(MTL::MathFloatingPointFunctionsPrecise);
    } else {
      options->setFastMathEnabled(false);
    }
    if (!libraries.empty()) options->setLibraries(NS::Array::array(libraries.data(), libraries.size()));
    if (!install_name.empty()) {
      options->setLibraryType(MTL::LibraryTypeDynamic);
      options->setInstallName(string_of(install_name));
    }
    NS::Error* error = nullptr;  // may hold warnings of a text that compiles
    auto library = NS::TransferPtr(gpu_->metal().newLibrary(string_of(text), options.get(), &error));
    if (!library) {
      const std::string log = text_of(error), mistake = mistake_in(log);
      throw CompileError(key, log.starts_with(mistake) ? log : mistake + "\n" + log);
    }
    return library;
  }

  Owned<MTL::Function> function_of(MTL::Library& library, const std::string& name, const std::string& ending,
                                   const FunctionConstants& constants, const std::string& key) {
    const auto values = NS::TransferPtr(MTL::FunctionConstantValues::alloc()->init());
    NS::UInteger number = 0;
    for (const auto& [constant, value] : constants) {
      const int as_int = static_cast<int>(value);
      values->setConstantValue(&as_int, MTL::DataTypeInt, number++);
    }
    NS::Error* error = nullptr;
    auto function = NS::TransferPtr(library.newFunction(string_of(name + ending), values.get(), &error));
    if (!function) throw CompileError(key, fmt::format("no function {}: {}", name, text_of(error)));
    return function;
  }

  /// Returns `stitched_function` of the graph of `functions`, which are the program's fragments.
  Owned<MTL::Function> stitched_of(const std::vector<const NS::Object*>& functions, const Program& program,
                                   size_t parameters, const std::string& key) {
    std::vector<Owned<MTL::FunctionStitchingInputNode>> inputs;
    std::vector<Owned<MTL::FunctionStitchingFunctionNode>> calls;
    std::vector<const NS::Object*> arguments, nodes;
    const auto array_of = [](const auto& objects) { return NS::Array::array(objects.data(), objects.size()); };
    for (size_t i = 0; i < parameters; ++i) {
      inputs.push_back(NS::TransferPtr(MTL::FunctionStitchingInputNode::alloc()->init(i)));
      arguments.push_back(inputs.back().get());
    }
    for (size_t i = 1; i < program.parts.size(); ++i) {
      const auto& [entry, text] = program.parts[i];
      if (stitchable_parameters(text, entry) != parameters) {
        throw CompileError(key, fmt::format("{} is no [[stitchable]] function of {} parameters", entry, parameters));
      }
      if (!calls.empty()) nodes.push_back(calls.back().get());
      calls.push_back(NS::TransferPtr(MTL::FunctionStitchingFunctionNode::alloc()->init(
          string_of(entry + program.ending), array_of(arguments), NS::Array::array())));
      arguments.front() = calls.back().get();
    }
    const auto inlined = NS::TransferPtr(MTL::FunctionStitchingAttributeAlwaysInline::alloc()->init());
    const auto graph = NS::TransferPtr(MTL::FunctionStitchingGraph::alloc()->init(
        string_of(stitched_function), array_of(nodes), calls.back().get(), NS::Array::array(inlined.get())));
    const auto descriptor = NS::TransferPtr(MTL::StitchedLibraryDescriptor::alloc()->init());
    descriptor->setFunctions(array_of(functions));
    descriptor->setFunctionGraphs(NS::Array::array(graph.get()));
    NS::Error* error = nullptr;
    const auto library = NS::TransferPtr(gpu_->metal().newLibrary(descriptor.get(), &error));
    if (!library) throw CompileError(key, text_of(error));
    auto function = NS::TransferPtr(library->newFunction(string_of(stitched_function)));
    if (!function) throw CompileError(key, fmt::format("the stitched library has no {}", stitched_function));
    return function;
  }

  /// Compiles the texts. A fragment that is called through a table is a function of the pipeline. Else a fragment that
  /// the optimiser sees is a private function of the pipeline, and one that is linked as machine code a dynamic
  /// library. Fragments that are [[stitchable]] become one function first.
  Owned<MTL::ComputePipelineDescriptor> describe(const Program& program, const FunctionConstants& constants,
                                                 const std::string& key) {
    auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
    std::vector<Owned<MTL::Function>> functions;
    std::vector<Owned<MTL::DynamicLibrary>> libraries;
    std::vector<const NS::Object*> linked;
    const bool in_table = has_function_table(program.parts.front().text);
    std::set<std::string> names;  // Metal wants different ones
    for (const auto& [entry, text] : program.parts) {
      if (!names.insert(entry).second) throw CompileError(key, "two functions have the name " + entry);
    }
    for (size_t i = 1; i < program.parts.size(); ++i) {
      const auto& [entry, text] = program.parts[i];
      if (program.linking == Linking::before_optimizer || in_table) {
        const auto library = library_of(text, program.language, key, {}, "");
        functions.push_back(function_of(*library.get(), entry, program.ending, {}, key));
        linked.push_back(functions.back().get());
      } else {
        const auto library =
            library_of(text, program.language, key, {}, fmt::format("@loader_path/{}.metallib", entry));
        NS::Error* error = nullptr;
        libraries.push_back(NS::TransferPtr(gpu_->metal().newDynamicLibrary(library.get(), &error)));
        if (!libraries.back()) throw CompileError(key, text_of(error));
        linked.push_back(libraries.back().get());
      }
    }
    const size_t parameters =
        functions.empty() ? 0 : stitchable_parameters(program.parts[1].text, program.parts[1].entry);
    if (parameters > 0) {
      functions.push_back(stitched_of(linked, program, parameters, key));
      linked = {functions.back().get()};
    }
    const auto library = library_of(program.parts.front().text, program.language, key,
                                    libraries.empty() ? std::vector<const NS::Object*>() : linked, "");
    const auto function = function_of(*library.get(), program.parts.front().entry, program.ending, constants, key);
    descriptor->setComputeFunction(function.get());
    if (!libraries.empty()) {
      descriptor->setPreloadedLibraries(NS::Array::array(linked.data(), linked.size()));
    } else if (!linked.empty()) {
      const auto links = NS::TransferPtr(MTL::LinkedFunctions::alloc()->init());
      const NS::Array* const all = NS::Array::array(linked.data(), linked.size());
      in_table ? links->setFunctions(all) : links->setPrivateFunctions(all);
      descriptor->setLinkedFunctions(links.get());
    }
    return descriptor;
  }

  Owned<MTL::ComputePipelineState> pipeline_of(const MTL::ComputePipelineDescriptor& descriptor,
                                               const std::string& key) {
    NS::Error* error = nullptr;
    auto pipeline =
        NS::TransferPtr(gpu_->metal().newComputePipelineState(&descriptor, MTL::PipelineOptionNone, nullptr, &error));
    if (!pipeline) throw CompileError(key, text_of(error));
    return pipeline;
  }

  /// Returns the table of the functions that the pipeline is linked with.
  Owned<MTL::VisibleFunctionTable> table_of(MTL::ComputePipelineState& pipeline,
                                            const MTL::ComputePipelineDescriptor& descriptor, const std::string& key) {
    const NS::Array& functions = *descriptor.linkedFunctions()->functions();
    const auto wanted = NS::TransferPtr(MTL::VisibleFunctionTableDescriptor::alloc()->init());
    wanted->setFunctionCount(functions.count());
    auto table = NS::TransferPtr(pipeline.newVisibleFunctionTable(wanted.get()));
    if (!table) throw CompileError(key, "Metal makes no table of functions");
    for (NS::UInteger i = 0; i < functions.count(); ++i) {
      const MTL::FunctionHandle* const handle = pipeline.functionHandle(functions.object<MTL::Function>(i));
      if (!handle) throw CompileError(key, fmt::format("Metal gives no handle of function {}", i));
      table->setFunction(handle, i);
    }
    return table;
  }

  Owned<MTL::BinaryArchive> new_archive(const NS::URL* url, const std::string& key) {
    const auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
    if (url) descriptor->setUrl(url);
    NS::Error* error = nullptr;
    auto archive = NS::TransferPtr(gpu_->metal().newBinaryArchive(descriptor.get(), &error));
    if (!archive) throw CompileError(key, text_of(error));
    return archive;
  }

  // Metal keeps archives in files only.
  static NS::URL* url_of(const TemporaryFolder& folder) {
    return NS::URL::fileURLWithPath(string_of((folder.path() / "archive.metallib").string()));
  }

  /// Compiles the kernel to machine code. Lets the descriptor take the code from the archive.
  Owned<MTL::BinaryArchive> archive_of(MTL::ComputePipelineDescriptor& descriptor, const std::string& key) {
    auto archive = new_archive(nullptr, key);
    NS::Error* error = nullptr;
    if (!archive->addComputePipelineFunctions(&descriptor, &error)) throw CompileError(key, text_of(error));
    const NS::Object* const one = archive.get();
    descriptor.setBinaryArchives(NS::Array::array(&one, 1));
    return archive;
  }

  std::string content_of(MTL::BinaryArchive& archive, const std::string& key) {
    const TemporaryFolder folder;
    NS::Error* error = nullptr;
    if (!archive.serializeToURL(url_of(folder), &error)) throw CompileError(key, text_of(error));
    std::optional<std::string> content = read_file(folder.path() / "archive.metallib");
    if (!content || content->empty()) throw CompileError(key, "Metal wrote no archive");
    return std::move(*content);
  }

  Owned<MTL::BinaryArchive> open_archive(const TemporaryFolder& folder, const std::string& content,
                                         const std::string& key) {
    if (!PendingFile(folder.path() / "archive.metallib").write(content)) {
      throw CompileError(key, "no room for a temporary file");
    }
    return new_archive(url_of(folder), key);
  }

  // ---- running

  /// Puts the commands of one submit() into command buffers: one for all commands between two timestamps, so that its
  /// GPUStartTime and GPUEndTime are the time of the interval. (Counters are sampled at the borders of stages only.)
  class Submission {
   public:
    Submission(MetalDevice& device, const CommandEncoder& encoder) : device_(device), encoder_(encoder) {}
    ~Submission() { end_encoder(); }  // Metal ends the process if an encoder is released that was not ended
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;

    std::vector<double> run() {
      try {
        for (const CommandEncoder::Command& command : encoder_.commands()) {
          if (const auto* dispatch = std::get_if<CommandEncoder::Dispatch>(&command)) {
            put(*dispatch);
          } else if (const auto* fill = std::get_if<CommandEncoder::Fill>(&command)) {
            if (fill->bytes > 0) put(*fill);
          } else {
            commit();
            ++timestamps_;
          }
        }
        commit();
      } catch (...) {  // what was put before runs, as Device::enqueue() promises
        commit();
        if (!device_.lost()) wait();
        throw;
      }
      wait();
      std::vector<double> seconds(timestamps_ > 0 ? timestamps_ - 1 : 0);
      double end = 0;  // of the buffer before
      for (const Committed& one : committed_) {
        if (one.interval > 0 && one.interval < timestamps_) seconds[one.interval - 1] += seconds_of(*one.buffer, end);
        end = one.buffer->GPUEndTime();
      }
      return seconds;
    }

   private:
    struct Committed {
      MTL::CommandBuffer* buffer;
      size_t interval;  // the timestamps before it
    };

    void put(const CommandEncoder::Dispatch& dispatch) {
      const auto& kernel = static_cast<const MetalKernel&>(*dispatch.kernel);
      const DeviceInfo& info = device_.info_;
      const size_t bytes =
          kernel.pipeline->staticThreadgroupMemoryLength() + metal_threadgroup_bytes(dispatch.threadgroup_bytes);
      if (bytes > device_.most_threadgroup_bytes_) {
        throw OutOfMemory(fmt::format("{} takes {} bytes of threadgroup memory; {} has {}", kernel.name, bytes,
                                      info.spec, device_.most_threadgroup_bytes_),
                          bytes);
      }
      const size_t most_threads = kernel.pipeline->maxTotalThreadsPerThreadgroup();
      if (dispatch.threads > most_threads) {
        throw std::runtime_error(
            fmt::format("{} has {} threads in a threadgroup; {} has registers for {} of this kernel", kernel.name,
                        dispatch.threads, info.spec, most_threads));
      }
      if (dispatch.grid.count() == 0) return;
      if (const auto reason = info.lacks_grid(dispatch.grid))
        throw BadInput(fmt::format("{} {}", kernel.name, *reason));
      if (dispatch.arguments && dispatch.arguments->values().size() > most_arguments) {
        throw BadInput(fmt::format("{} has {} arguments; Metal allows {}", kernel.name,
                                   dispatch.arguments->values().size(), most_arguments));
      }
      // An encoder keeps the length of threadgroup memory. Metal may count it for a kernel that takes none.
      if (dispatch.threadgroup_bytes == 0 && has_threadgroup_memory_) end_encoder();
      if (compute_) {
        compute_->memoryBarrier(MTL::BarrierScopeBuffers);
      } else {
        end_encoder();
        compute_ = buffer().computeCommandEncoder();
        begin(compute_);
        device_.gpu_->make_resident(*compute_);
      }
      compute_->setComputePipelineState(kernel.pipeline.get());
      NS::UInteger index = 0;
      const auto set = [&](const std::vector<std::byte>& value) {
        if (value.size() <= most_argument_bytes) {
          compute_->setBytes(value.data(), value.size(), index++);
          return;
        }
        const auto copy = NS::TransferPtr(
            device_.gpu_->metal().newBuffer(value.data(), value.size(), MTL::ResourceStorageModeShared));
        if (!copy) throw OutOfMemory("metal has no room for an argument", value.size());
        compute_->setBuffer(copy.get(), 0, index++);  // the command buffer keeps it
      };
      if (dispatch.arguments) {
        for (const Arguments::Value& value : dispatch.arguments->values()) set(value);
      } else {
        set(dispatch.parameters);
      }
      has_threadgroup_memory_ = dispatch.threadgroup_bytes > 0;
      if (has_threadgroup_memory_) {
        compute_->setThreadgroupMemoryLength(metal_threadgroup_bytes(dispatch.threadgroup_bytes), 0);
      }
      compute_->dispatchThreadgroups({dispatch.grid.x, dispatch.grid.y, dispatch.grid.z}, {dispatch.threads, 1, 1});
    }

    void put(const CommandEncoder::Fill& fill) {
      const Gpu::Place place = device_.gpu_->place_of(fill.target, fill.bytes);
      if (place.offset % 4 != 0 || fill.bytes % 4 != 0) {  // a GPU fills whole words only
        commit();
        wait();
        std::memset(place.host, fill.value, fill.bytes);
        return;
      }
      // Nothing orders the fills of one encoder.
      const auto* const from = place.host;
      const auto overlaps = [&](const auto& other) { return other.first < from + fill.bytes && from < other.second; };
      if (!blit_ || std::ranges::any_of(filled_, overlaps)) {
        end_encoder();
        blit_ = buffer().blitCommandEncoder();
        begin(blit_);
        filled_.clear();
      }
      filled_.emplace_back(from, from + fill.bytes);
      blit_->fillBuffer(place.buffer, NS::Range::Make(place.offset, fill.bytes), fill.value);
    }

    MTL::CommandBuffer& buffer() {
      if (!buffer_ && committed_.size() - completed_ >= most_buffers) wait_for_next();
      if (!buffer_) buffer_ = device_.queue_.commands->commandBuffer();
      if (!buffer_) throw std::runtime_error(device_.info_.spec + ": the GPU takes no further command buffer");
      return *buffer_;
    }

    // Kernels reach memory by addresses, so Metal does not know which encoders depend on each other. A fence makes each
    // encoder wait for the one before it.
    template <typename Encoder>
    void begin(Encoder* encoder) {
      if (!encoder) throw std::runtime_error(device_.info_.spec + ": the GPU takes no further commands");
      if (fence_updated_) encoder->waitForFence(device_.queue_.fence.get());
    }
    template <typename Encoder>
    void end(Encoder*& encoder) {
      if (!encoder) return;
      encoder->updateFence(device_.queue_.fence.get());
      encoder->endEncoding();
      fence_updated_ = true;
      encoder = nullptr;
    }
    void end_encoder() {
      end(compute_);
      end(blit_);
      has_threadgroup_memory_ = false;
    }

    void commit() {
      end_encoder();
      if (!buffer_) return;
      buffer_->commit();
      committed_.push_back({buffer_, timestamps_});
      buffer_ = nullptr;
    }

    /// Waits for all that is committed. Throws if a part of it failed.
    void wait() {
      while (completed_ < committed_.size()) wait_for_next();
    }

    /// Waits for the first buffer that has not completed. A buffer's times and error are final only after
    /// waitUntilCompleted(), which has no time-out, so the status is asked for first. The times are the GPU's, so a
    /// wait that sleeps changes none.
    void wait_for_next() {
      MTL::CommandBuffer& buffer = *committed_[completed_].buffer;
      const auto start = std::chrono::steady_clock::now();
      while (buffer.status() < MTL::CommandBufferStatusCompleted) {
        const auto waited = std::chrono::steady_clock::now() - start;
        if (waited > deadline) {
          device_.lost_ = true;
          throw DeviceTimeout(fmt::format("{}: {} did not end within {} s", device_.info_.spec,
                                          names_of(encoder_.commands()), deadline.count()));
        }
        if (waited > std::chrono::milliseconds(1)) {
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        } else {
          std::this_thread::yield();
        }
      }
      buffer.waitUntilCompleted();
      ++completed_;
      if (buffer.status() == MTL::CommandBufferStatusError) fail(buffer);
    }

    [[noreturn]] void fail(const MTL::CommandBuffer& buffer) {
      const NS::Error* const error = buffer.error();
      std::string why = text_of(error);
      std::ranges::replace(why, '\n', ' ');
      const std::string what = fmt::format("{}: {} in {}", device_.info_.spec, why, names_of(encoder_.commands()));
      // macOS hands on codes that MTLCommandBufferError lacks: 5 and 14. It may name them in the text only.
      constexpr NS::Integer innocent_victim = 5, impacting_interactivity = 14;
      const bool is_metals = error && text_of(error->domain()) == "MTLCommandBufferErrorDomain";
      const auto is = [&](NS::Integer code, const char* name) {
        return (is_metals && error->code() == code) || why.find(name) != why.npos;
      };
      if (is(MTL::CommandBufferErrorOutOfMemory, "ErrorOutOfMemory")) throw OutOfMemory(what, 0);
      device_.lost_ = true;  // Metal ignores what a process submits after a fault
      if (is(innocent_victim, "InnocentVictim")) {
        throw DeviceFault(what + ", which another program's fault on the GPU has ended");
      }
      if (is(MTL::CommandBufferErrorTimeout, "ErrorTimeout") || is(impacting_interactivity, "ImpactingInteractivity")) {
        throw DeviceTimeout(what);  // the watchdog of a Mac with a display
      }
      throw DeviceFault(what);
    }

    /// Returns the time of a buffer. Its first encoder waits for the buffer that ended at `before`, and
    /// GPUStartTime may count this wait.
    double seconds_of(const MTL::CommandBuffer& buffer, double before) const {
      const double begin = buffer.GPUStartTime(), end = buffer.GPUEndTime();
      if (begin > 0 && end > std::max(begin, before)) {
        static std::once_flag warned;
        if (before - begin > 1e-6) {
          std::call_once(warned, [&] { spdlog::warn("metal: command buffers overlap, by {:.3g} s", before - begin); });
        }
        return end - std::max(begin, before);
      }
      throw std::runtime_error(fmt::format("{}: Metal reports no time of {}: from {} s to {} s", device_.info_.spec,
                                           names_of(encoder_.commands()), begin, end));
    }

    MetalDevice& device_;
    const CommandEncoder& encoder_;
    // The thread's Pool owns these objects.
    MTL::CommandBuffer* buffer_ = nullptr;
    MTL::ComputeCommandEncoder* compute_ = nullptr;
    MTL::BlitCommandEncoder* blit_ = nullptr;
    bool fence_updated_ = false;           // whether an encoder has updated the fence
    bool has_threadgroup_memory_ = false;  // whether compute_ has a length of threadgroup memory
    std::vector<std::pair<const std::byte*, const std::byte*>> filled_;  // what blit_ fills
    std::vector<Committed> committed_;
    size_t completed_ = 0;  // how many of committed_
    size_t timestamps_ = 0;
  };

  /// Throws DeviceMissing if the GPU or its compiler is not what the kernels assume. Asks the GPU, not its family: some
  /// virtual machines name a lower family than they have.
  void probe() {
    const KernelSource source{.path = "common/device/kernels/probe.metal", .entry = "probe"};
    const auto refuse = [&](const std::string& why) {
      throw DeviceMissing(fmt::format("metal: {}: {}", info_.name, why));
    };
    try {
      const std::unique_ptr<Kernel> kernel = load(compile(source, {}), source.entry);
      const Buffer zero = uploaded<unsigned>(*this, {0}), found(*this, probed_count * sizeof(unsigned));
      CommandEncoder encoder;
      encoder.timestamp();
      encoder.dispatch(*kernel, {}, probe_threads, most_threadgroup_bytes_,
                       ProbeParams{static_cast<unsigned*>(found.data()), static_cast<const unsigned*>(zero.data()),
                                   static_cast<unsigned>(most_threadgroup_bytes_ / sizeof(unsigned) - 1)});
      encoder.timestamp();
      submit(encoder);
      const std::vector<unsigned> values = downloaded<unsigned>(found);
      // Buffers hold NaN until something is written.
      if (std::ranges::all_of(values, [](unsigned value) { return value == ~0u; })) {
        refuse("kernels do not reach memory by its address");
      }
      if (values[probed_width] != info_.simd_width) {
        refuse(fmt::format("a simdgroup has {} lanes; kernels need {}", values[probed_width], info_.simd_width));
      }
      if (values[probed_misplaced] != 0) {
        refuse(fmt::format("{} elements of simdgroup matrices lie in other lanes than kernels assume",
                           values[probed_misplaced]));
      }
      if (values[probed_last_word] != 12345) {
        refuse(
            fmt::format("the last of {} bytes of threadgroup memory does not keep its value", most_threadgroup_bytes_));
      }
      if (values[probed_bfloats] != 0) refuse("conversions to bfloat do not round to nearest, ties to even");
      if (values[probed_finite_only] != 0) refuse("the compiler uses fast mathematics, though it is told not to");
    } catch (const DeviceMissing&) {
      throw;
    } catch (const CompileError& error) {
      refuse(fmt::format("the kernel probe does not compile: {}", mistake_in(error.log())));
    } catch (const std::exception& error) {
      refuse(fmt::format("the kernel probe: {}", error.what()));
    } catch (...) {  // on a Mac also an exception of Objective-C
      refuse("Metal raised an exception");
    }
  }

  const std::shared_ptr<Gpu> gpu_;
  struct Queue {
    Owned<MTL::CommandQueue> commands;
    Owned<MTL::Fence> fence;
    ~Queue() {
      const Pool pool;  // for what Metal releases later
      commands.reset();
      fence.reset();
    }
  } queue_;
  size_t most_threadgroup_bytes_ = 0;  // the hardware's limit; info().threadgroup_memory_bytes may be lowered
  std::mutex submitting_;
};

}  // namespace

std::unique_ptr<Device> open_metal_gpu() { return std::make_unique<MetalDevice>(); }

}  // namespace attn
