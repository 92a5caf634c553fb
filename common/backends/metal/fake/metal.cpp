// The classes of Metal.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <Metal/Metal.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <string_view>

#include "common/backends/metal/emulator/emulator.h"
#include "common/backends/metal/fake/runtime.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/sha256.h"

namespace attn::fake {

namespace {

[[noreturn]] void misused(const std::string& what) { throw Misuse(what); }

/// For checks in destructors, which cannot throw.
[[noreturn]] void end_process(const char* what) {
  std::fprintf(stderr, "fake Metal: %s\n", what);
  std::abort();
}

/// For objects that Metal may hand on to the thread's pool when they begin or end.
void need_pool(const char* what) {
  if (!has_pool()) end_process(what);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// ---- memory

/// Memory with two addresses: one for the host, and one for kernels, which the host must not use. The kernels' address
/// is a multiple of 256 only.
struct Buffer : Object {
  explicit Buffer(size_t bytes, const char* name = "MTLBuffer") : Object(name), length(bytes), mapped(bytes + offset) {
    const int file = memfd_create("fake Metal buffer", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) end_process("no memory");
    host = static_cast<std::byte*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    gpu = static_cast<std::byte*>(mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, file, 0));
    close(file);
    if (host == MAP_FAILED || gpu == MAP_FAILED) end_process("no memory");
    allocated += mapped;
  }
  ~Buffer() override {
    munmap(host, mapped);
    munmap(gpu, mapped);
    allocated -= mapped;
  }
  void open() const { mprotect(gpu, mapped, PROT_READ | PROT_WRITE); }
  void close_again() const { mprotect(gpu, mapped, PROT_NONE); }

  static constexpr size_t offset = 256;
  static inline std::atomic<size_t> allocated = 0;
  const size_t length, mapped;
  std::byte *host = nullptr, *gpu = nullptr;
};

struct ResidencySetDescriptor : Object {
  ResidencySetDescriptor() : Object("MTLResidencySetDescriptor") {}
};
struct ResidencySet : Object {
  ResidencySet() : Object("MTLResidencySet") {}
  std::vector<Ref<Buffer>> wanted, resident;  // resident: what was wanted at the last commit()
};

// ---- kernels

struct CompileOptions : Object {
  CompileOptions() : Object("MTLCompileOptions") {}
  NS::UInteger language = MTL::LanguageVersion3_2;
  bool fast_math = true;
  NS::Integer type = MTL::LibraryTypeExecutable;
  std::string install_name;
  Ref<Array> libraries;
};

struct Library : Object {
  Library() : Object("MTLLibrary") {}
  std::string text, install_name;
  int language = 320;
  bool fast_math = true;
  NS::Integer type = MTL::LibraryTypeExecutable;
  Ref<Array> libraries;
  std::vector<Ref<Object>> stitched;  // the Functions that the library's function calls and the text only declares

  /// The names of functions, as Metal sees them.
  struct Names {
    std::set<std::string> kernels, visible, declared;  // declared: visible functions of other libraries
  };
  Names names() const {
    // Each begins a line, as in this project's texts.
    static const std::regex define(R"((?:^|\n)#define (\w+) (\w+_anew_\w+))");
    static const std::regex function(R"((?:^|\n)(?:(kernel) void|\[\[(?:visible|stitchable)\]\] \w+) (\w+)\()");
    std::map<std::string, std::string> renamed;
    for (std::sregex_iterator it(text.begin(), text.end(), define), end; it != end; ++it) renamed[(*it)[1]] = (*it)[2];
    Names all;
    for (std::sregex_iterator it(text.begin(), text.end(), function), end; it != end; ++it) {
      size_t at = static_cast<size_t>(it->position() + it->length());
      for (int open = 1; open > 0 && at < text.size(); ++at) open += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
      const bool defined = text.substr(text.find_first_not_of(" \n", at), 1) != ";";
      const auto other = renamed.find((*it)[2]);
      (!defined           ? all.declared
       : (*it)[1].matched ? all.kernels
                          : all.visible)
          .insert(other == renamed.end() ? (*it)[2].str() : other->second);
    }
    return all;
  }
};
struct DynamicLibrary : Object {
  DynamicLibrary() : Object("MTLDynamicLibrary") {}
  Ref<Library> library;
};

using Constants = std::map<std::string, double>;  // by number
struct FunctionConstantValues : Object {
  FunctionConstantValues() : Object("MTLFunctionConstantValues") {}
  Constants values;
};
struct Function : Object {
  Function() : Object("MTLFunction") {}
  Ref<Library> library;
  std::string name;
  Constants constants;
  bool is_kernel = false;
};
struct LinkedFunctions : Object {
  LinkedFunctions() : Object("MTLLinkedFunctions") {}
  Ref<Array> functions;
  bool in_table = false;  // else private
};
/// A function as a pipeline has it.
struct FunctionHandle : Object {
  FunctionHandle(const void* at, const Object* of) : Object("MTLFunctionHandle"), address(at), pipeline(of) {}
  const void* const address;
  const Object* const pipeline;
};
/// A buffer with the addresses of functions.
struct VisibleFunctionTable : Buffer {
  VisibleFunctionTable(size_t count, const Object* of)
      : Buffer(count * sizeof(void*), "MTLVisibleFunctionTable"), pipeline(of) {}
  const Object* const pipeline;
};
struct VisibleFunctionTableDescriptor : Object {
  VisibleFunctionTableDescriptor() : Object("MTLVisibleFunctionTableDescriptor") {}
  NS::UInteger count = 0;
};

/// What a kernel is linked with: private functions, functions of a table, or functions of dynamic libraries.
struct Links {
  std::vector<Ref<Function>> functions;
  bool in_table = false;

  /// The functions, and after them those that stitched functions call.
  std::vector<Ref<Function>> all() const {
    std::vector<Ref<Function>> found = functions;
    for (const Ref<Function>& one : functions) {
      for (const Ref<Object>& called : one->library->stitched) {
        found.emplace_back(static_cast<Function*>(called.get()));
      }
    }
    return found;
  }
};

/// A line for each function that takes part, and the texts: what decides the machine code.
std::string identity(const Function& function, const Links& links) {
  std::string text;
  const auto add = [&](const Function& one) {
    text += fmt::format("{} {} {}", one.name, one.library->language, one.library->fast_math);
    for (const auto& [number, value] : one.constants) text += fmt::format(" {}={}", number, value);
    text += "\n" + one.library->text + "\n";
  };
  add(function);
  for (const Ref<Function>& one : links.all()) add(*one);
  return text;
}

/// Returns the text without the endings that make the names of functions new. So the emulator compiles a kernel once
/// only.
std::string old_names(std::string text) {
  constexpr std::string_view begins = "_anew_";
  for (size_t at = text.find(begins); at != text.npos; at = text.find(begins, at)) {
    text.erase(at, text.find_first_not_of("0123456789abcdef_", at + begins.size()) - at);
  }
  return text;
}

const msl::Compiler& compiler() {
  static const msl::Compiler one;
  return one;
}

/// Compiles a kernel, or takes it from the folder $ATTENTION_PROTO_CACHE. Throws CompileError.
Binary compiled(const Function& function, const Links& links) {
  // A call refers to a visible function only if its declaration says that it is one.
  const std::set<std::string> declared = function.library->names().declared;
  for (const Ref<Function>& one : links.functions) {
    if (!links.in_table && !declared.contains(one->name)) {
      throw CompileError(fmt::format("no declaration of {} as [[visible]]", one->name));
    }
  }
  static std::mutex mutex;
  static std::map<std::string, Binary> known;
  const std::string id =
      sha256(fmt::format("{} {} {}", compiler().identity(), old_names(identity(function, links)), system().fast_math));
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(id); found != known.end()) return found->second;
  }
  const char* const folder = std::getenv("ATTENTION_PROTO_CACHE");
  const std::string path = folder && *folder ? fmt::format("{}/fake-{}", folder, id) : "";
  std::optional<Binary> binary;
  if (const auto content = path.empty() ? std::nullopt : read_file(path)) binary = deserialize(id, *content);
  if (!binary) {
    constexpr const char* name = "program_source";
    const Library& library = *function.library;
    msl::Source source{.path = name,
                       .function = old_names(function.name),
                       .texts = {{name, old_names(library.text)}},
                       .constants = function.constants,
                       .language = library.language,
                       .fast_math = library.fast_math || system().fast_math};
    for (const Ref<Function>& one : links.all()) {
      source.linked.emplace_back(old_names(one->name), old_names(one->library->text));
    }
    binary = compiler().compile(source);
    std::error_code ignored;
    if (!path.empty() && std::filesystem::is_directory(folder, ignored)) {
      (void)PendingFile(path).write(serialize(id, *binary));
    }
  }
  const std::lock_guard lock(mutex);
  return known.emplace(id, *binary).first->second;
}

// ---- stitching

struct InputNode : Object {
  InputNode() : Object("MTLFunctionStitchingInputNode") {}
  NS::UInteger index = 0;
};
struct FunctionNode : Object {
  FunctionNode() : Object("MTLFunctionStitchingFunctionNode") {}
  std::string name;
  Ref<Array> arguments;
};
struct AlwaysInline : Object {
  AlwaysInline() : Object("MTLFunctionStitchingAttributeAlwaysInline") {}
};
struct StitchingGraph : Object {
  StitchingGraph() : Object("MTLFunctionStitchingGraph") {}
  std::string name;
  Ref<Array> nodes;  // without `output`
  Ref<FunctionNode> output;
};
struct StitchedLibraryDescriptor : Object {
  StitchedLibraryDescriptor() : Object("MTLStitchedLibraryDescriptor") {}
  Ref<Array> functions, graphs;
};

struct Signature {
  std::string result;
  std::vector<std::string> types;  // of the parameters
};
Signature signature_of(const Function& function) {
  const std::regex definition(
      fmt::format(R"((?:^|\n)\[\[stitchable\]\] (\w+) {}\(([^)]*)\))", old_names(function.name)));
  static const std::regex parameter(R"(\s*([^,]+?)\s*\w+\s*(?:,|$))");
  std::smatch found;
  if (!std::regex_search(function.library->text, found, definition)) {
    misused(fmt::format("a graph gets {}, which is not [[stitchable]]", function.name));
  }
  Signature signature{found[1], {}};
  const std::string parameters = found[2];
  for (std::sregex_iterator it(parameters.begin(), parameters.end(), parameter), end; it != end; ++it) {
    signature.types.push_back((*it)[1]);
  }
  return signature;
}

/// Returns the text of a graph's function.
std::string stitched_text(const StitchingGraph& graph, const std::map<std::string, Signature>& known) {
  const auto has = [&](const Object* node) {
    return std::ranges::any_of(graph.nodes->all, [&](const Ref<Object>& one) { return one.get() == node; });
  };
  if (!graph.output) misused("the fake knows no graphs without an output node");
  if (has(graph.output.get())) misused("a graph's output node is among its other nodes");
  std::map<NS::UInteger, std::string> inputs;  // their types
  const std::function<std::string(const FunctionNode&)> call = [&](const FunctionNode& node) {
    if (!known.contains(node.name)) misused(fmt::format("a graph calls {}, which its library lacks", node.name));
    const std::vector<std::string>& types = known.at(node.name).types;
    const std::vector<Ref<Object>>& arguments = node.arguments->all;
    if (arguments.size() != types.size()) {
      misused(fmt::format("{} takes {} arguments, and its node has {}", node.name, types.size(), arguments.size()));
    }
    std::vector<std::string> texts;
    for (size_t i = 0; i < types.size(); ++i) {
      std::string type;
      if (const auto* const input = dynamic_cast<const InputNode*>(arguments[i].get())) {
        type = inputs.emplace(input->index, types[i]).first->second;
        texts.push_back(fmt::format("argument_{}", input->index));
      } else {
        const auto& inner = dynamic_cast<const FunctionNode&>(*arguments[i]);
        if (!has(&inner)) misused(fmt::format("a graph lacks the node of {}", inner.name));
        texts.push_back(call(inner));
        type = known.at(inner.name).result;
      }
      if (type != types[i]) misused(fmt::format("{} takes a {}, and gets a {}", node.name, types[i], type));
    }
    return fmt::format("{}({})", node.name, fmt::join(texts, ", "));
  };
  const std::string body = call(*graph.output);
  std::vector<std::string> parameters;
  for (const auto& [index, type] : inputs) {
    if (index != parameters.size()) misused(fmt::format("a graph has no node of argument {}", parameters.size()));
    parameters.push_back(fmt::format("{} argument_{}", type, index));
  }
  return fmt::format("\n[[stitchable]] {} {}({}) {{ return {}; }}\n", known.at(graph.output->name).result, graph.name,
                     fmt::join(parameters, ", "), body);
}

/// The text is that of the first function, which has the types, with the graphs' functions after it.
Object* new_stitched_library(const StitchedLibraryDescriptor& descriptor) {
  if (!descriptor.functions || descriptor.functions->all.empty()) misused("a stitched library of no functions");
  if (!descriptor.graphs) misused("a stitched library of no graphs");
  const Library& first = *static_cast<const Function&>(*descriptor.functions->all.front()).library;
  std::string text = first.text;
  std::vector<Ref<Object>> others;
  std::map<std::string, Signature> known;
  for (const Ref<Object>& one : descriptor.functions->all) {
    const auto& function = static_cast<const Function&>(*one);
    const auto& [result, types] = known.emplace(function.name, signature_of(function)).first->second;
    if (function.library.get() == &first) continue;
    text += fmt::format("\n[[visible]] {} {}({});\n", result, function.name, fmt::join(types, ", "));
    others.push_back(one);
  }
  for (const Ref<Object>& graph : descriptor.graphs->all) {
    text += stitched_text(static_cast<const StitchingGraph&>(*graph), known);
  }
  auto* const library = new Library;
  library->text = text;
  library->language = first.language;
  library->fast_math = first.fast_math;
  library->stitched = others;
  return library;
}

struct BinaryArchiveDescriptor : Object {
  BinaryArchiveDescriptor() : Object("MTLBinaryArchiveDescriptor") {}
  Ref<Url> url;
};
struct BinaryArchive : Object {
  BinaryArchive() : Object("MTLBinaryArchive") {}
  std::map<std::string, Binary> codes;  // by the hash of identity()
  std::string path;                     // of the file that Metal may still read
};
constexpr std::string_view archive_begins = "a fake archive\n";

struct ComputePipelineDescriptor : Object {
  ComputePipelineDescriptor() : Object("MTLComputePipelineDescriptor") {}
  Ref<Function> function;
  Ref<LinkedFunctions> linked;
  Ref<Array> archives, preloaded;

  Links links() const {
    Links all;
    if (linked && linked->functions) {
      all.in_table = linked->in_table;
      for (const Ref<Object>& one : linked->functions->all)
        all.functions.emplace_back(static_cast<Function*>(one.get()));
    }
    if (preloaded) {
      for (const Ref<Object>& one : preloaded->all) {
        Ref<Function> whole(new Function);
        release(whole.get());
        whole->library = static_cast<DynamicLibrary*>(one.get())->library;
        const std::set<std::string> names = whole->library->names().visible;
        if (names.empty()) misused("a dynamic library without a function");
        whole->name = *names.begin();
        all.functions.push_back(whole);
      }
    }
    const Ref<Array>& needed = function->library->libraries;
    for (const Ref<Object>& one : needed ? needed->all : std::vector<Ref<Object>>()) {
      const auto is_it = [&](const Ref<Object>& other) { return other.get() == one.get(); };
      if (!preloaded || std::ranges::none_of(preloaded->all, is_it)) misused("a pipeline lacks a dynamic library");
    }
    return all;
  }
};

struct Pipeline : Object {
  Pipeline(const Binary& binary, Links links)
      : Object("MTLComputePipelineState"), kernel(binary), linked(std::move(links)) {}
  ~Pipeline() override { need_pool("a pipeline ends without an autorelease pool"); }
  const msl::Kernel kernel;
  const Links linked;
};

// ---- commands

struct Fence : Object {
  Fence() : Object("MTLFence") {}
  bool updated = false;
};

/// What a dispatch was given. An encoder keeps all for its next dispatch.
struct Dispatch {
  Ref<Pipeline> pipeline;
  struct Argument {
    std::vector<std::byte> bytes;
    Ref<Buffer> buffer;
    size_t offset = 0;
  };
  std::map<uint32_t, Argument> arguments;
  std::map<uint32_t, size_t> threadgroup_bytes;
  std::set<uint32_t> new_arguments, new_lengths;  // that were set since the pipeline was
  Grid grid, threads;
};

struct Encoder;
struct CommandBuffer;

struct Queue : Object {
  Queue() : Object("MTLCommandQueue") {}
  ~Queue() override { need_pool("a queue ends without an autorelease pool"); }
  void run_until(const CommandBuffer* last);

  std::mutex mutex;
  std::vector<Ref<ResidencySet>> sets;
  std::vector<Ref<CommandBuffer>> committed;  // that have not run
  Ref<Fence> updated;                         // by the last encoder that was committed
  int count = 0;                              // of buffers that have run
  bool faulted = false;
};

struct CommandBuffer : Object {
  explicit CommandBuffer(Queue* of) : Object("MTLCommandBuffer"), queue(of) {}
  Ref<Queue> queue;
  std::vector<Ref<Encoder>> encoders;
  Encoder* open = nullptr;
  NS::UInteger status = MTL::CommandBufferStatusNotEnqueued;
  int asked = 0;         // how often the host asked for the status
  bool has_run = false;  // the status says so when the host asks for it
  double begin = 0, end = 0;
  Ref<Error> error;
};

struct Encoder : Object {
  Encoder(const char* name, CommandBuffer* of) : Object(name), buffer(of) {}
  ~Encoder() override {
    if (!ended) end_process("an encoder is released that was not ended");
  }
  void check() const {
    if (ended) misused("an encoder gets a command after endEncoding");
  }
  void add(std::function<void()> command) {
    check();
    commands.push_back(std::move(command));
  }

  CommandBuffer* buffer;
  bool ended = false;
  std::vector<Ref<Fence>> waits_for;
  Ref<Fence> updates;
  std::vector<Ref<Buffer>> used;  // by useResources
  std::vector<std::function<void()>> commands;
  Dispatch next;
};

void run(const Dispatch& dispatch, const std::vector<Ref<Buffer>>& resident) {
  static std::atomic<uint32_t> orders = 0;
  constexpr uint32_t most_orders = 4;
  msl::Run launch{.grid = dispatch.grid,
                  .threads = dispatch.threads,
                  .threadgroup_bytes = dispatch.threadgroup_bytes,
                  .order = orders++ % most_orders,
                  .generation = system().other_fragments ? msl::Generation::other_fragments : msl::Generation::m1};
  std::vector<Ref<Buffer>> all = resident;
  for (const auto& [index, argument] : dispatch.arguments) {
    if (argument.buffer) {
      launch.buffers[index] = argument.buffer->gpu + Buffer::offset + argument.offset;
      all.push_back(argument.buffer);
    } else {
      launch.buffers[index] = argument.bytes.data();
      launch.memory.push_back(
          {fmt::format("the kernel's argument {}", index), argument.bytes.data(), argument.bytes.size()});
    }
  }
  std::ranges::sort(all, {}, [](const Ref<Buffer>& one) { return one.get(); });
  const auto last = std::ranges::unique(all, {}, [](const Ref<Buffer>& one) { return one.get(); });
  all.erase(last.begin(), last.end());
  std::erase_if(all, [&](const Ref<Buffer>& one) {  // a table is for its pipeline only
    const auto* const table = dynamic_cast<const VisibleFunctionTable*>(one.get());
    return table && table->pipeline != dispatch.pipeline.get();
  });
  for (const Ref<Buffer>& one : all) {
    one->open();
    launch.memory.push_back({fmt::format("a buffer of {} bytes", one->length), one->gpu + Buffer::offset, one->length});
  }
  std::exception_ptr error;
  try {
    dispatch.pipeline->kernel.run(launch);
  } catch (...) {
    error = std::current_exception();
  }
  for (const Ref<Buffer>& one : all) one->close_again();
  if (error) std::rethrow_exception(error);
}

void run(CommandBuffer& buffer) {
  Queue& queue = *buffer.queue;
  const auto fail = [&](long code, const std::string& text, const std::string& domain) {
    buffer.error = Ref<Error>(new Error(code, text, domain));
    release(buffer.error.get());
  };
  constexpr const char* domain = "MTLCommandBufferErrorDomain";
  buffer.begin = now();
  try {
    if (queue.faulted) fail(MTL::CommandBufferErrorAccessRevoked, "ignored after an earlier fault", domain);
    if (system().error != 0) {
      fail(system().error, system().error_text, system().error_domain);
      system().error = 0;
    }
    for (const Ref<Encoder>& encoder : buffer.encoders) {
      // Nothing orders the fills of an encoder.
      if (std::string_view(encoder->class_name) == "MTLBlitCommandEncoder") std::ranges::reverse(encoder->commands);
      for (const auto& command : encoder->commands) {
        if (!buffer.error) command();
      }
    }
  } catch (const std::exception& fault) {
    fail(MTL::CommandBufferErrorPageFault, fault.what(), domain);
  }
  for (const Ref<Encoder>& encoder : buffer.encoders) {
    if (buffer.error && encoder->updates) encoder->updates->updated = false;
  }
  queue.faulted = queue.faulted || (buffer.error && buffer.error->code != MTL::CommandBufferErrorOutOfMemory &&
                                    buffer.error->text.find("OutOfMemory") == std::string::npos);
  buffer.end = std::max(now(), buffer.begin + 1e-9);
  if (system().overlap) buffer.begin = 1, buffer.end = 2 + queue.count;
  if (!system().gives_times) buffer.begin = buffer.end = 0;
  ++queue.count;
  buffer.has_run = true;
}

void Queue::run_until(const CommandBuffer* last) {
  while (!last->has_run) {
    const Ref<CommandBuffer> first = committed.front();
    committed.erase(committed.begin());
    run(*first);
  }
}

/// Tells the host that the buffer has run.
void complete(CommandBuffer& buffer) {
  const std::lock_guard lock(buffer.queue->mutex);
  buffer.queue->run_until(&buffer);
  buffer.status = buffer.error ? MTL::CommandBufferStatusError : MTL::CommandBufferStatusCompleted;
}

void commit(CommandBuffer& buffer) {
  if (buffer.status >= MTL::CommandBufferStatusCommitted) misused("a command buffer is committed twice");
  if (buffer.open && !buffer.open->ended) misused("a command buffer is committed while an encoder is open");
  Queue& queue = *buffer.queue;
  const std::lock_guard lock(queue.mutex);
  bool is_first = queue.committed.empty();
  for (const Ref<Encoder>& encoder : buffer.encoders) {
    const std::vector<Ref<Fence>>& waits = encoder->waits_for;
    if (!std::ranges::all_of(waits, [](const Ref<Fence>& fence) { return fence->updated; })) {
      misused("an encoder waits for a fence that none updates");
    }
    const auto is_last = [&](const Ref<Fence>& fence) { return fence.get() == queue.updated.get(); };
    if (!is_first && !(queue.updated && std::ranges::any_of(waits, is_last))) {
      misused("an encoder does not wait for the one before it, whose memory Metal does not track");
    }
    is_first = false;
    queue.updated = encoder->updates;
    if (queue.updated) queue.updated->updated = true;
  }
  buffer.status = MTL::CommandBufferStatusCommitted;
  queue.committed.emplace_back(&buffer);
}

/// Returns a new command buffer. A queue waits while 64 of its buffers have not completed.
Object* new_buffer(Queue& queue) {
  const std::lock_guard lock(queue.mutex);
  if (queue.committed.size() >= 64) {
    if (!system().ends) misused("commandBuffer waits without an end");
    queue.run_until(queue.committed.front().get());
  }
  return autoreleased(new CommandBuffer(&queue));
}

Object* new_encoder(CommandBuffer& buffer, const char* class_name) {
  if (buffer.status >= MTL::CommandBufferStatusCommitted) misused("an encoder is made after commit");
  if (buffer.open && !buffer.open->ended) misused("an encoder is made while another is open");
  auto* const encoder = new Encoder(class_name, &buffer);
  buffer.encoders.emplace_back(encoder);
  buffer.open = encoder;
  return autoreleased(encoder);
}

void dispatch(Encoder& encoder, const MTL::Size& grid, const MTL::Size& threads) {
  encoder.check();
  Dispatch one = encoder.next;
  if (!one.pipeline) misused("a dispatch without a pipeline");
  const msl::Kernel& kernel = one.pipeline->kernel;
  const auto numbers = [](const auto& map) {
    std::vector<uint32_t> all;
    for (const auto& [number, value] : map) all.push_back(number);
    return all;
  };
  const auto is_same = [](const std::vector<uint32_t>& wanted, const auto& given) {
    return std::set<uint32_t>(wanted.begin(), wanted.end()) == std::set<uint32_t>(given.begin(), given.end());
  };
  if (!is_same(kernel.indices("buffer"), one.new_arguments)) {
    misused(fmt::format("a kernel has buffers [{}], but is bound to [{}]", fmt::join(kernel.indices("buffer"), ", "),
                        fmt::join(one.new_arguments, ", ")));
  }
  if (!is_same(kernel.indices("threadgroup"), one.new_lengths) ||
      !is_same(kernel.indices("threadgroup"), numbers(one.threadgroup_bytes))) {
    misused("the lengths of threadgroup memory are not those that the kernel needs");
  }
  std::erase_if(one.arguments, [&](const auto& argument) { return !one.new_arguments.contains(argument.first); });
  size_t bytes = kernel.threadgroup_bytes();
  for (const auto& [index, length] : one.threadgroup_bytes) bytes += length;
  if (bytes > system().threadgroup_bytes) misused(fmt::format("{} bytes of threadgroup memory", bytes));
  const size_t count = threads.width * threads.height * threads.depth;
  if (count == 0 || count > system().threads_per_threadgroup)
    misused(fmt::format("{} threads in a threadgroup", count));
  one.grid = {static_cast<uint32_t>(grid.width), static_cast<uint32_t>(grid.height), static_cast<uint32_t>(grid.depth)};
  one.threads = {static_cast<uint32_t>(threads.width), static_cast<uint32_t>(threads.height),
                 static_cast<uint32_t>(threads.depth)};
  if (one.grid.count() == 0) misused("a dispatch of no threadgroups");
  encoder.add([one = std::move(one), &encoder] {
    std::vector<Ref<Buffer>> resident = encoder.used;
    for (const Ref<ResidencySet>& set : encoder.buffer->queue->sets) {
      resident.insert(resident.end(), set->resident.begin(), set->resident.end());
    }
    run(one, resident);
  });
}

// ---- the device

struct Device : Object {
  Device() : Object("MTLDevice") { need_pool("a device begins without an autorelease pool"); }
  ~Device() override { need_pool("a device ends without an autorelease pool"); }
};
struct Architecture : Object {
  Architecture() : Object("MTLArchitecture") {}
};

Object* new_library(const std::string& text, CompileOptions* options, Object** error) {
  if (options && options->language >= MTL::LanguageVersion3_2 && system().macos < 15) {
    set_error(error, MTL::LibraryErrorUnsupported, "Metal 3.2 needs macOS 15");
    return nullptr;
  }
  auto* const library = new Library;
  library->text = text;
  if (options) {
    library->language = static_cast<int>((options->language >> 16) * 100 + (options->language & 0xffff) * 10);
    library->install_name = options->install_name;
    library->fast_math = options->fast_math;
    library->type = options->type;
    library->libraries = options->libraries;
  }
  // Metal compiles all kernels here. A kernel with function constants compiles only when they have values, and one that
  // calls functions of other libraries only when it is linked; here its mistakes show then.
  const std::set<std::string> names = library->names().kernels;
  const bool later = text.find("[[function_constant(") != text.npos || text.find("[[visible]]") != text.npos;
  if (!names.empty() && !later) {
    Function first;
    retain(&first);
    first.library = library;
    first.name = *names.begin();
    try {
      compiled(first, {});
    } catch (const CompileError& wrong) {
      set_error(error, MTL::LibraryErrorCompileFailure, std::string(wrong.log()));
      first.library = {};
      release(library);
      return nullptr;
    }
  }
  return library;
}

Object* new_function(Library& library, const std::string& name, const Constants& constants, Object** error) {
  const Library::Names names = library.names();
  if (!names.kernels.contains(name) && !names.visible.contains(name)) {
    set_error(error, MTL::LibraryErrorFunctionNotFound, fmt::format("there is no function {}", name));
    return nullptr;
  }
  auto* const function = new Function;
  function->library = &library;
  function->name = name;
  function->constants = constants;
  function->is_kernel = names.kernels.contains(name);
  return function;
}

Object* new_pipeline(ComputePipelineDescriptor& descriptor, NS::UInteger options, Object** error) {
  if (!descriptor.function) misused("a pipeline without a function");
  const Links links = descriptor.links();
  if (descriptor.archives) {
    for (const Ref<Object>& one : descriptor.archives->all) {
      const auto& archive = *static_cast<BinaryArchive*>(one.get());
      if (!archive.path.empty() && !std::filesystem::exists(archive.path)) {
        misused("an archive's file is gone before its pipeline is made");
      }
      const auto found = archive.codes.find(sha256(identity(*descriptor.function, links)));
      if (found != archive.codes.end() && system().finds) return new Pipeline(found->second, links);
    }
    if ((options & MTL::PipelineOptionFailOnBinaryArchiveMiss) != 0) {
      set_error(error, 1, "the archive has no code for the kernel");
      return nullptr;
    }
  }
  try {
    return new Pipeline(compiled(*descriptor.function, links), links);
  } catch (const CompileError& wrong) {
    set_error(error, MTL::LibraryErrorCompileFailure, std::string(wrong.log()));
    return nullptr;
  }
}

Object* new_archive(const BinaryArchiveDescriptor& descriptor, Object** error) {
  auto* const archive = new BinaryArchive;
  if (!descriptor.url) return archive;
  archive->path = descriptor.url->path;
  const std::optional<std::string> content = read_file(descriptor.url->path);
  std::string_view rest = content ? *content : std::string_view();
  bool ok = rest.starts_with(archive_begins);
  if (ok) rest.remove_prefix(archive_begins.size());
  while (ok && !rest.empty()) {  // ID BYTES\nCODE
    const size_t space = rest.find(' '), end = rest.find('\n');
    ok = space != rest.npos && end != rest.npos && space < end;
    if (!ok) break;
    const std::string id(rest.substr(0, space));
    const size_t bytes = std::strtoul(std::string(rest.substr(space + 1, end - space - 1)).c_str(), nullptr, 10);
    const std::optional<Binary> binary = deserialize(id, rest.substr(end + 1, bytes));
    ok = binary.has_value();
    if (ok) archive->codes.emplace(id, *binary);
    rest.remove_prefix(std::min(end + 1 + bytes, rest.size()));
  }
  if (ok) return archive;
  set_error(error, MTL::BinaryArchiveErrorInvalidFile, "the file is no archive");
  release(archive);
  return nullptr;
}

bool serialize_archive(const BinaryArchive& archive, const std::string& path) {
  std::string content(archive_begins);
  for (const auto& [id, binary] : archive.codes) {
    const std::string code = serialize(id, binary);
    content += fmt::format("{} {}\n{}", id, code.size(), code);
  }
  return PendingFile(path).write(content);
}

void add_device() {
  // Binaries that another version of the emulator compiled are of another system, so that no cache has them for this
  // one.
  method("NSProcessInfo", "operatingSystemVersionString", [](Object*, SEL) -> Object* {
    static const std::string version = sha256(compiler().identity()).substr(0, 8);
    return autoreleased(new String(fmt::format("Version {}.0 (fake {})", system().macos, version)));
  });
  constexpr const char* device = "MTLDevice";
  method(device, "name", [](Object*, SEL) -> Object* { return autoreleased(new String("Fake GPU")); });
  method(device, "architecture", [](Object*, SEL) -> Object* { return autoreleased(new Architecture); });
  method("MTLArchitecture", "name", [](Object*, SEL) -> Object* { return autoreleased(new String("fake")); });
  method(device, "maxThreadgroupMemoryLength", [](Object*, SEL) -> NS::UInteger { return system().threadgroup_bytes; });
  method(device, "maxBufferLength", [](Object*, SEL) -> NS::UInteger { return system().memory_bytes / 2; });
  method(device, "recommendedMaxWorkingSetSize", [](Object*, SEL) -> uint64_t { return system().memory_bytes; });
  method(device, "currentAllocatedSize", [](Object*, SEL) -> NS::UInteger { return Buffer::allocated; });
  method(device, "newCommandQueue",
         [](Object*, SEL message) -> Object* { return fails(message, nullptr) ? nullptr : new Queue; });
  method(device, "newFence",
         [](Object*, SEL message) -> Object* { return fails(message, nullptr) ? nullptr : new Fence; });
  method(device,
         "newBufferWithLength:options:", [](Object*, SEL message, NS::UInteger length, NS::UInteger) -> Object* {
           if (length == 0) misused("a buffer of 0 bytes");
           return fails(message, nullptr) || length > system().memory_bytes / 2 ? nullptr : new Buffer(length);
         });
  method(device, "newBufferWithBytes:length:options:",
         [](Object*, SEL message, const void* bytes, NS::UInteger length, NS::UInteger) -> Object* {
           if (length == 0) misused("a buffer of 0 bytes");
           if (fails(message, nullptr) || length > system().memory_bytes / 2) return nullptr;
           auto* const buffer = new Buffer(length);
           std::memcpy(buffer->host + Buffer::offset, bytes, length);
           return buffer;
         });
  method(device, "respondsToSelector:", [](Object*, SEL, SEL) -> bool { return true; });
  method(device, "supportsFamily:", [](Object*, SEL, NS::Integer family) -> bool { return family <= system().family; });
  method(device, "supportsFunctionPointers", [](Object*, SEL) -> bool { return system().links; });
  method(device, "supportsDynamicLibraries", [](Object*, SEL) -> bool { return system().links; });
  method(device, "newResidencySetWithDescriptor:error:",
         [](Object*, SEL message, ResidencySetDescriptor*, Object** error) -> Object* {
           if (system().macos < 15 || system().family < MTL::GPUFamilyApple6) {
             misused("a residency set on a system that has none");
           }
           return fails(message, error) ? nullptr : new ResidencySet;
         });
  method(device, "newLibraryWithSource:options:error:",
         [](Object*, SEL message, String* text, CompileOptions* options, Object** error) -> Object* {
           if (!text) misused("a library of no text");
           return fails(message, error) ? nullptr : new_library(text->text, options, error);
         });
  method(device, "newLibraryWithStitchedDescriptor:error:",
         [](Object*, SEL message, StitchedLibraryDescriptor* descriptor, Object** error) -> Object* {
           return fails(message, error) ? nullptr : new_stitched_library(*descriptor);
         });
  method(device, "newDynamicLibrary:error:", [](Object*, SEL message, Library* library, Object** error) -> Object* {
    if (!system().links) misused("a dynamic library on a GPU that has none");
    if (library->type != MTL::LibraryTypeDynamic) misused("a dynamic library of a library of another type");
    if (library->install_name.empty()) misused("a dynamic library without a name to install it by");
    if (fails(message, error)) return nullptr;
    auto* const dynamic = new DynamicLibrary;
    dynamic->library = library;
    return dynamic;
  });
  method(device, "newComputePipelineStateWithDescriptor:options:reflection:error:",
         [](Object*, SEL message, ComputePipelineDescriptor* descriptor, NS::UInteger options, void*, Object** error)
             -> Object* { return fails(message, error) ? nullptr : new_pipeline(*descriptor, options, error); });
  method(device, "newBinaryArchiveWithDescriptor:error:",
         [](Object*, SEL message, BinaryArchiveDescriptor* descriptor, Object** error) -> Object* {
           return fails(message, error) ? nullptr : new_archive(*descriptor, error);
         });
}

void set_functions(LinkedFunctions& links, Array* functions, bool in_table) {
  for (const Ref<Object>& one : functions->all) {
    if (static_cast<Function*>(one.get())->is_kernel) misused("a kernel is linked with a kernel");
  }
  links.functions = functions;
  links.in_table = in_table;
}

void add_kernels() {
  allocatable<CompileOptions>("MTLCompileOptions");
  constexpr const char* options = "MTLCompileOptions";
  method(options, "setLanguageVersion:", [](CompileOptions* self, SEL, NS::UInteger value) { self->language = value; });
  method(options, "setFastMathEnabled:", [](CompileOptions* self, SEL, bool value) { self->fast_math = value; });
  method(options, "setMathMode:", [](CompileOptions* self, SEL, NS::Integer value) {
    if (system().macos < 15) misused("setMathMode needs macOS 15");
    self->fast_math = value != MTL::MathModeSafe;
  });
  method(options, "setMathFloatingPointFunctions:", [](CompileOptions*, SEL, NS::Integer) {
    if (system().macos < 15) misused("setMathFloatingPointFunctions needs macOS 15");
  });
  method(options, "setLibraryType:", [](CompileOptions* self, SEL, NS::Integer value) { self->type = value; });
  method(options, "setInstallName:", [](CompileOptions* self, SEL, String* name) { self->install_name = name->text; });
  method(options, "setLibraries:", [](CompileOptions* self, SEL, Array* all) { self->libraries = all; });

  allocatable<FunctionConstantValues>("MTLFunctionConstantValues");
  method("MTLFunctionConstantValues", "setConstantValue:type:atIndex:",
         [](FunctionConstantValues* self, SEL, const void* value, NS::UInteger type, NS::UInteger index) {
           if (type != MTL::DataTypeInt) misused("the fake knows function constants of type int only");
           int number = 0;
           std::memcpy(&number, value, sizeof number);
           self->values[std::to_string(index)] = number;
         });
  method("MTLLibrary", "newFunctionWithName:constantValues:error:",
         [](Library* self, SEL message, String* name, FunctionConstantValues* values, Object** error) -> Object* {
           if (!name) misused("a function of no name");
           return fails(message, error) ? nullptr : new_function(*self, name->text, values->values, error);
         });

  method("MTLLibrary", "newFunctionWithName:", [](Library* self, SEL message, String* name) -> Object* {
    if (!name) misused("a function of no name");
    return fails(message, nullptr) ? nullptr : new_function(*self, name->text, {}, nullptr);
  });

  allocatable<InputNode>("MTLFunctionStitchingInputNode");
  method("MTLFunctionStitchingInputNode", "initWithArgumentIndex:", [](InputNode* self, SEL, NS::UInteger index) {
    self->index = index;
    return self;
  });
  allocatable<FunctionNode>("MTLFunctionStitchingFunctionNode");
  method("MTLFunctionStitchingFunctionNode", "initWithName:arguments:controlDependencies:",
         [](FunctionNode* self, SEL, String* name, Array* arguments, Array* before) {
           if (!before->all.empty()) misused("the fake knows no control dependencies");
           self->name = name->text;
           self->arguments = arguments;
           return self;
         });
  allocatable<AlwaysInline>("MTLFunctionStitchingAttributeAlwaysInline");
  allocatable<StitchingGraph>("MTLFunctionStitchingGraph");
  method("MTLFunctionStitchingGraph", "initWithFunctionName:nodes:outputNode:attributes:",
         [](StitchingGraph* self, SEL, String* name, Array* nodes, FunctionNode* output, Array*) {
           self->name = name->text;
           self->nodes = nodes;
           self->output = output;
           return self;
         });
  allocatable<StitchedLibraryDescriptor>("MTLStitchedLibraryDescriptor");
  method("MTLStitchedLibraryDescriptor",
         "setFunctions:", [](StitchedLibraryDescriptor* self, SEL, Array* functions) { self->functions = functions; });
  method("MTLStitchedLibraryDescriptor",
         "setFunctionGraphs:", [](StitchedLibraryDescriptor* self, SEL, Array* graphs) { self->graphs = graphs; });

  allocatable<LinkedFunctions>("MTLLinkedFunctions");
  method("MTLLinkedFunctions", "setPrivateFunctions:", [](LinkedFunctions* self, SEL, Array* functions) {
    set_functions(*self, functions, false);
  });
  method("MTLLinkedFunctions",
         "setFunctions:", [](LinkedFunctions* self, SEL, Array* functions) { set_functions(*self, functions, true); });
  method("MTLLinkedFunctions", "functions",
         [](LinkedFunctions* self, SEL) -> Object* { return self->in_table ? self->functions.get() : nullptr; });
  method("MTLComputePipelineDescriptor", "linkedFunctions",
         [](ComputePipelineDescriptor* self, SEL) -> Object* { return self->linked.get(); });
  method("MTLComputePipelineState",
         "functionHandleWithFunction:", [](Pipeline* self, SEL message, Function* function) -> Object* {
           if (fails(message, nullptr)) return nullptr;
           const std::vector<Ref<Function>>& all = self->linked.functions;
           for (size_t i = 0; self->linked.in_table && i < all.size(); ++i) {  // private functions have no handle
             if (all[i].get() != function) continue;
             return autoreleased(new FunctionHandle(self->kernel.functions().at(i), self));
           }
           return nullptr;
         });
  allocatable<VisibleFunctionTableDescriptor>("MTLVisibleFunctionTableDescriptor");
  method("MTLVisibleFunctionTableDescriptor", "setFunctionCount:",
         [](VisibleFunctionTableDescriptor* self, SEL, NS::UInteger count) { self->count = count; });
  method("MTLComputePipelineState", "newVisibleFunctionTableWithDescriptor:",
         [](Pipeline* self, SEL message, VisibleFunctionTableDescriptor* wanted) -> Object* {
           if (!system().links) misused("a table of functions on a GPU that has none");
           return fails(message, nullptr) ? nullptr : new VisibleFunctionTable(wanted->count, self);
         });
  method("MTLVisibleFunctionTable",
         "setFunction:atIndex:", [](VisibleFunctionTable* self, SEL, FunctionHandle* handle, NS::UInteger index) {
           if (!handle || handle->pipeline != self->pipeline) misused("a table gets a function of another pipeline");
           if (index * sizeof(void*) >= self->length) misused("a function beyond the table");
           std::memcpy(self->host + Buffer::offset + index * sizeof(void*), &handle->address, sizeof(void*));
         });
  method("MTLVisibleFunctionTable", "gpuResourceID",
         [](Buffer* self, SEL) -> MTL::ResourceID { return {reinterpret_cast<uint64_t>(self->gpu + Buffer::offset)}; });
  allocatable<ComputePipelineDescriptor>("MTLComputePipelineDescriptor");
  constexpr const char* descriptor = "MTLComputePipelineDescriptor";
  method(descriptor, "setComputeFunction:", [](ComputePipelineDescriptor* self, SEL, Function* function) {
    self->function = function;
  });
  method(descriptor, "setLinkedFunctions:", [](ComputePipelineDescriptor* self, SEL, LinkedFunctions* linked) {
    self->linked = linked;
  });
  method(descriptor, "setBinaryArchives:", [](ComputePipelineDescriptor* self, SEL, Array* archives) {
    self->archives = archives;
  });
  method(descriptor, "setPreloadedLibraries:", [](ComputePipelineDescriptor* self, SEL, Array* libraries) {
    self->preloaded = libraries;
  });
  constexpr const char* pipeline = "MTLComputePipelineState";
  method(pipeline, "maxTotalThreadsPerThreadgroup",
         [](Pipeline*, SEL) -> NS::UInteger { return system().threads_per_threadgroup; });
  method(pipeline, "staticThreadgroupMemoryLength",
         [](Pipeline* self, SEL) -> NS::UInteger { return self->kernel.threadgroup_bytes(); });

  allocatable<BinaryArchiveDescriptor>("MTLBinaryArchiveDescriptor");
  method("MTLBinaryArchiveDescriptor",
         "setUrl:", [](BinaryArchiveDescriptor* self, SEL, Url* url) { self->url = url; });
  method("MTLBinaryArchive", "addComputePipelineFunctionsWithDescriptor:error:",
         [](BinaryArchive* self, SEL message, ComputePipelineDescriptor* descriptor, Object** error) -> bool {
           if (fails(message, error)) return false;
           const Links links = descriptor->links();
           try {
             self->codes[sha256(identity(*descriptor->function, links))] = compiled(*descriptor->function, links);
             return true;
           } catch (const CompileError& wrong) {
             set_error(error, MTL::BinaryArchiveErrorCompilationFailure, std::string(wrong.log()));
             return false;
           }
         });
  method("MTLBinaryArchive", "serializeToURL:error:", [](BinaryArchive* self, SEL message, Url* url, Object** error) {
    if (fails(message, error)) return false;
    if (self->codes.empty()) misused("an empty archive is written");
    return serialize_archive(*self, url->path);
  });
}

void add_memory() {
  method("MTLBuffer", "length", [](Buffer* self, SEL) -> NS::UInteger { return self->length; });
  method("MTLBuffer", "contents", [](Buffer* self, SEL) -> void* { return self->host + Buffer::offset; });
  method("MTLBuffer", "gpuAddress", [](Buffer* self, SEL) -> uint64_t {
    return system().one_address ? *system().one_address : reinterpret_cast<uint64_t>(self->gpu + Buffer::offset);
  });
  allocatable<ResidencySetDescriptor>("MTLResidencySetDescriptor");
  constexpr const char* set = "MTLResidencySet";
  method(set, "addAllocation:", [](ResidencySet* self, SEL, Buffer* buffer) { self->wanted.emplace_back(buffer); });
  method(set, "removeAllocation:", [](ResidencySet* self, SEL, Buffer* buffer) {
    if (std::erase_if(self->wanted, [&](const Ref<Buffer>& one) { return one.get() == buffer; }) == 0) {
      misused("a residency set does not have the allocation that it should lose");
    }
  });
  method(set, "commit", [](ResidencySet* self, SEL) { self->resident = self->wanted; });
}

void set_argument(Encoder& encoder, NS::UInteger index, Dispatch::Argument argument) {
  encoder.check();
  encoder.next.arguments[static_cast<uint32_t>(index)] = std::move(argument);
  encoder.next.new_arguments.insert(static_cast<uint32_t>(index));
}

void add_commands() {
  constexpr const char* queue = "MTLCommandQueue";
  method(queue, "addResidencySet:", [](Queue* self, SEL, ResidencySet* set) { self->sets.emplace_back(set); });
  method(queue, "commandBuffer",
         [](Queue* self, SEL message) -> Object* { return fails(message, nullptr) ? nullptr : new_buffer(*self); });
  constexpr const char* buffer = "MTLCommandBuffer";
  method(buffer, "computeCommandEncoder", [](CommandBuffer* self, SEL message) -> Object* {
    return fails(message, nullptr) ? nullptr : new_encoder(*self, "MTLComputeCommandEncoder");
  });
  method(buffer, "blitCommandEncoder", [](CommandBuffer* self, SEL message) -> Object* {
    return fails(message, nullptr) ? nullptr : new_encoder(*self, "MTLBlitCommandEncoder");
  });
  method(buffer, "commit", [](CommandBuffer* self, SEL) { commit(*self); });
  method(buffer, "status", [](CommandBuffer* self, SEL) -> NS::UInteger {
    if (self->status == MTL::CommandBufferStatusCommitted && ++self->asked > 1 && system().ends) complete(*self);
    return self->status;
  });
  method(buffer, "waitUntilCompleted", [](CommandBuffer* self, SEL) {
    if (self->status < MTL::CommandBufferStatusCommitted) misused("a wait for a command buffer without commit");
    if (self->status >= MTL::CommandBufferStatusCompleted) return;
    if (!system().ends) misused("a wait for a command buffer that does not end");
    complete(*self);
  });
  method(buffer, "error", [](CommandBuffer* self, SEL) -> Object* { return self->error.get(); });
  method(buffer, "GPUStartTime", [](CommandBuffer* self, SEL) -> double {
    if (self->status < MTL::CommandBufferStatusCompleted) misused("a time of a command buffer that has not completed");
    return self->begin;
  });
  method(buffer, "GPUEndTime", [](CommandBuffer* self, SEL) -> double {
    if (self->status < MTL::CommandBufferStatusCompleted) misused("a time of a command buffer that has not completed");
    return self->end;
  });
  for (const char* const encoder : {"MTLComputeCommandEncoder", "MTLBlitCommandEncoder"}) {
    method(encoder, "waitForFence:", [](Encoder* self, SEL, Fence* fence) {
      if (!self->commands.empty()) misused("an encoder waits for a fence after its first command");
      self->check();
      self->waits_for.emplace_back(fence);
    });
    method(encoder, "updateFence:", [](Encoder* self, SEL, Fence* fence) {
      self->check();
      self->updates = fence;
    });
    method(encoder, "endEncoding", [](Encoder* self, SEL) {
      self->check();
      self->ended = true;
    });
  }
  constexpr const char* compute = "MTLComputeCommandEncoder";
  method(compute, "setComputePipelineState:", [](Encoder* self, SEL, Pipeline* pipeline) {
    self->check();
    self->next.pipeline = pipeline;
    self->next.new_arguments = self->next.new_lengths = {};
  });
  method(compute, "setBytes:length:atIndex:",
         [](Encoder* self, SEL, const void* bytes, NS::UInteger length, NS::UInteger index) {
           if (length == 0 || length > 4096 || index > 30) misused("setBytes takes 1 to 4096 bytes, at 0 to 30");
           const auto* const begin = static_cast<const std::byte*>(bytes);
           set_argument(*self, index, {{begin, begin + length}, {}, 0});
         });
  method(compute,
         "setBuffer:offset:atIndex:", [](Encoder* self, SEL, Buffer* bound, NS::UInteger offset, NS::UInteger index) {
           if (offset > bound->length || index > 30) misused("setBuffer with an offset beyond the buffer");
           set_argument(*self, index, {{}, bound, offset});
         });
  method(compute,
         "setThreadgroupMemoryLength:atIndex:", [](Encoder* self, SEL, NS::UInteger length, NS::UInteger index) {
           self->check();
           if (length == 0 || length % 16 != 0) misused("threadgroup memory has a multiple of 16 bytes");
           if (index > 30) misused("threadgroup memory has the numbers 0 to 30");
           self->next.threadgroup_bytes[static_cast<uint32_t>(index)] = length;
           self->next.new_lengths.insert(static_cast<uint32_t>(index));
         });
  method(compute,
         "useResources:count:usage:", [](Encoder* self, SEL, Buffer* const* all, NS::UInteger count, NS::UInteger) {
           self->check();
           for (NS::UInteger i = 0; i < count; ++i) self->used.emplace_back(all[i]);
         });
  method(compute, "memoryBarrierWithScope:", [](Encoder* self, SEL, NS::UInteger) { self->check(); });
  method(compute, "dispatchThreadgroups:threadsPerThreadgroup:",
         [](Encoder* self, SEL, MTL::Size grid, MTL::Size threads) { dispatch(*self, grid, threads); });
  method("MTLBlitCommandEncoder",
         "fillBuffer:range:value:", [](Encoder* self, SEL, Buffer* filled, NS::Range range, uint8_t value) {
           if (range.location % 4 != 0 || range.length % 4 != 0 || range.length == 0) {
             misused("fillBuffer fills whole words");
           }
           if (range.location > filled->length || range.length > filled->length - range.location) {
             misused("fillBuffer beyond the buffer");
           }
           self->add([filled = Ref<Buffer>(filled), range, value] {
             std::memset(filled->host + Buffer::offset + range.location, value, range.length);
           });
         });
}

MTL::Device* new_device() {
  static const bool added = (add_device(), add_kernels(), add_memory(), add_commands(), true);
  (void)added;
  return reinterpret_cast<MTL::Device*>(new Device);
}

}  // namespace

void* new_buffer(size_t bytes) { return static_cast<Object*>(new Buffer(bytes)); }
std::byte* contents_of(void* buffer) {
  return static_cast<Buffer*>(static_cast<Object*>(buffer))->host + Buffer::offset;
}
void release_buffer(void* buffer) { release(static_cast<Object*>(buffer)); }

}  // namespace attn::fake

extern "C" {
MTL::Device* MTLCreateSystemDefaultDevice() {
  const attn::fake::System& system = attn::fake::system();
  return system.has_gpu && system.has_default ? attn::fake::new_device() : nullptr;
}
NS::Array* MTLCopyAllDevices() {
  auto* const all = new attn::fake::Array;
  if (attn::fake::system().has_gpu) {
    all->all.emplace_back(reinterpret_cast<attn::fake::Object*>(attn::fake::new_device()));
    attn::fake::release(all->all.front().get());
  }
  return reinterpret_cast<NS::Array*>(all);
}
NS::Array* MTLCopyAllDevicesWithObserver(NS::Object**, MTL::DeviceNotificationHandlerBlock) { return nullptr; }
void MTLRemoveDeviceObserver(const NS::Object*) {}
}
