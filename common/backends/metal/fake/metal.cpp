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
  std::string text;
  int language = 320;
  bool fast_math = true;
  NS::Integer type = MTL::LibraryTypeExecutable;
  Ref<Array> libraries;

  /// Returns the names of the kernels and of the visible functions.
  std::vector<std::string> names() const {
    // Each begins a line, as in this project's texts.
    static const std::regex function(R"((?:^|\n)(?:kernel void|\[\[(?:visible|stitchable)\]\] \w+) (\w+)\()");
    std::vector<std::string> found;
    for (std::sregex_iterator it(text.begin(), text.end(), function), end; it != end; ++it) found.push_back((*it)[1]);
    return found;
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
};
struct LinkedFunctions : Object {
  LinkedFunctions() : Object("MTLLinkedFunctions") {}
  Ref<Array> functions;
  bool in_table = false;  // else private
};
/// A function as a pipeline has it.
struct FunctionHandle : Object {
  explicit FunctionHandle(const void* at) : Object("MTLFunctionHandle"), address(at) {}
  const void* const address;
};
/// The table itself is a Buffer with the addresses of functions.
struct VisibleFunctionTableDescriptor : Object {
  VisibleFunctionTableDescriptor() : Object("MTLVisibleFunctionTableDescriptor") {}
  NS::UInteger count = 0;
};

/// A line for each function that takes part, and the texts: what decides the machine code.
std::string identity(const Function& function, const std::vector<const Function*>& linked) {
  std::string text;
  const auto add = [&](const Function& one) {
    text += fmt::format("{} {} {}", one.name, one.library->language, one.library->fast_math);
    for (const auto& [number, value] : one.constants) text += fmt::format(" {}={}", number, value);
    text += "\n" + one.library->text + "\n";
  };
  add(function);
  for (const Function* const one : linked) add(*one);
  return sha256(text);
}

const msl::Compiler& compiler() {
  static const msl::Compiler one;
  return one;
}

/// Compiles a kernel, or takes it from the folder $ATTENTION_PROTO_CACHE. Throws CompileError.
Binary compiled(const Function& function, const std::vector<const Function*>& linked) {
  static std::mutex mutex;
  static std::map<std::string, Binary> known;
  const std::string id =
      sha256(fmt::format("{} {} {}", compiler().identity(), identity(function, linked), system().fast_math));
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
                       .function = function.name,
                       .texts = {{name, library.text}},
                       .constants = function.constants,
                       .language = library.language,
                       .fast_math = library.fast_math || system().fast_math};
    for (const Function* const one : linked) source.linked.emplace_back(one->name, one->library->text);
    binary = compiler().compile(source);
    std::error_code ignored;
    if (!path.empty() && std::filesystem::is_directory(folder, ignored)) {
      (void)PendingFile(path).write(serialize(id, *binary));
    }
  }
  const std::lock_guard lock(mutex);
  return known.emplace(id, *binary).first->second;
}

struct BinaryArchiveDescriptor : Object {
  BinaryArchiveDescriptor() : Object("MTLBinaryArchiveDescriptor") {}
  Ref<Url> url;
};
struct BinaryArchive : Object {
  BinaryArchive() : Object("MTLBinaryArchive") {}
  std::map<std::string, Binary> codes;  // by identity()
};
constexpr std::string_view archive_begins = "a fake archive\n";

struct ComputePipelineDescriptor : Object {
  ComputePipelineDescriptor() : Object("MTLComputePipelineDescriptor") {}
  Ref<Function> function;
  Ref<LinkedFunctions> linked;
  Ref<Array> archives, preloaded;

  /// The functions that the kernel is linked with: private functions, and functions of dynamic libraries.
  std::vector<Ref<Function>> functions() const {
    std::vector<Ref<Function>> all;
    if (linked && linked->functions) {
      for (const Ref<Object>& one : linked->functions->all) all.emplace_back(static_cast<Function*>(one.get()));
    }
    if (preloaded) {
      for (const Ref<Object>& one : preloaded->all) {
        Ref<Function> whole(new Function);
        release(whole.get());
        whole->library = static_cast<DynamicLibrary*>(one.get())->library;
        const std::vector<std::string> names = whole->library->names();
        if (names.empty()) misused("a dynamic library without a function");
        whole->name = names.front();
        all.push_back(whole);
      }
    }
    return all;
  }
};
std::vector<const Function*> pointers(const std::vector<Ref<Function>>& functions) {
  std::vector<const Function*> all;
  for (const Ref<Function>& one : functions) all.push_back(one.get());
  return all;
}

struct Pipeline : Object {
  Pipeline(const Binary& binary, const std::vector<Ref<Function>>& functions)
      : Object("MTLComputePipelineState"), kernel(binary), linked(functions) {}
  const msl::Kernel kernel;
  const std::vector<Ref<Function>> linked;
};

// ---- commands

struct Fence : Object {
  Fence() : Object("MTLFence") {}
};

/// What a dispatch was given.
struct Dispatch {
  Ref<Pipeline> pipeline;
  struct Argument {
    std::vector<std::byte> bytes;
    Ref<Buffer> buffer;
    size_t offset = 0;
  };
  std::map<uint32_t, Argument> arguments;
  std::map<uint32_t, size_t> threadgroup_bytes;
  Grid grid, threads;
};

struct Encoder;
struct CommandBuffer;

struct Queue : Object {
  Queue() : Object("MTLCommandQueue") {}
  void run_until(const CommandBuffer* last);

  std::mutex mutex;
  std::vector<Ref<ResidencySet>> sets;
  std::vector<Ref<CommandBuffer>> committed;  // that have not run
  Ref<Fence> updated;                         // by the last encoder that was committed
  bool any_encoder = false;
};

struct CommandBuffer : Object {
  explicit CommandBuffer(Queue* of) : Object("MTLCommandBuffer"), queue(of) {}
  Ref<Queue> queue;
  std::vector<Ref<Encoder>> encoders;
  Encoder* open = nullptr;
  NS::UInteger status = MTL::CommandBufferStatusNotEnqueued;
  int asked = 0;  // how often the host asked for the status
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
  buffer.begin = now();
  try {
    if (system().error != 0) {
      buffer.error = Ref<Error>(new Error(system().error, "the command buffer\nfails"));
      release(buffer.error.get());
      system().error = 0;
    }
    for (const Ref<Encoder>& encoder : buffer.encoders) {
      for (const auto& command : encoder->commands) {
        if (!buffer.error) command();
      }
    }
  } catch (const std::exception& fault) {
    buffer.error = Ref<Error>(new Error(MTL::CommandBufferErrorPageFault, fault.what()));
    release(buffer.error.get());
  }
  buffer.end = std::max(now(), buffer.begin + 1e-9);
  if (!system().gives_times) buffer.begin = buffer.end = 0;
  buffer.status = buffer.error ? MTL::CommandBufferStatusError : MTL::CommandBufferStatusCompleted;
}

void Queue::run_until(const CommandBuffer* last) {
  while (!committed.empty()) {
    const Ref<CommandBuffer> first = committed.front();
    committed.erase(committed.begin());
    run(*first);
    if (first.get() == last) return;
  }
}

void commit(CommandBuffer& buffer) {
  if (buffer.status >= MTL::CommandBufferStatusCommitted) misused("a command buffer is committed twice");
  if (buffer.open && !buffer.open->ended) misused("a command buffer is committed while an encoder is open");
  Queue& queue = *buffer.queue;
  const std::lock_guard lock(queue.mutex);
  for (const Ref<Encoder>& encoder : buffer.encoders) {
    const bool waits = std::ranges::any_of(encoder->waits_for,
                                           [&](const Ref<Fence>& fence) { return fence.get() == queue.updated.get(); });
    if (queue.any_encoder && !(queue.updated && waits)) {
      misused("an encoder does not wait for the one before it, whose memory Metal does not track");
    }
    queue.any_encoder = true;
    queue.updated = encoder->updates;
  }
  buffer.status = MTL::CommandBufferStatusCommitted;
  queue.committed.emplace_back(&buffer);
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
  const auto is_same = [](std::vector<uint32_t> wanted, const std::vector<uint32_t>& given) {
    std::ranges::sort(wanted);
    return wanted == given;
  };
  if (!is_same(kernel.indices("buffer"), numbers(one.arguments))) {
    misused(fmt::format("a kernel has buffers [{}], but is bound to [{}]", fmt::join(kernel.indices("buffer"), ", "),
                        fmt::join(numbers(one.arguments), ", ")));
  }
  if (!is_same(kernel.indices("threadgroup"), numbers(one.threadgroup_bytes))) {
    misused("the lengths of threadgroup memory are not those that the kernel needs");
  }
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
  // Metal keeps a pipeline's arguments for the next dispatch; the device must set all of them again.
  encoder.next = {};
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
  Device() : Object("MTLDevice") {}
};
struct Architecture : Object {
  Architecture() : Object("MTLArchitecture") {}
};

Object* new_library(const std::string& text, CompileOptions* options, Object** error) {
  auto* const library = new Library;
  library->text = text;
  if (options) {
    library->language = options->language >= MTL::LanguageVersion3_2 ? 320 : 310;
    library->fast_math = options->fast_math;
    library->type = options->type;
    library->libraries = options->libraries;
  }
  // Metal compiles all kernels here. A kernel with function constants compiles only when they have values, and one that
  // calls functions of other libraries only when it is linked; here its mistakes show then.
  const std::vector<std::string> names = library->names();
  const bool later = text.find("[[function_constant(") != text.npos || text.find("[[visible]]") != text.npos;
  if (!names.empty() && !later) {
    Function first;
    retain(&first);
    first.library = library;
    first.name = names.front();
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
  const std::vector<std::string> names = library.names();
  if (std::ranges::find(names, name) == names.end()) {
    set_error(error, MTL::LibraryErrorFunctionNotFound, fmt::format("there is no function {}", name));
    return nullptr;
  }
  auto* const function = new Function;
  function->library = &library;
  function->name = name;
  function->constants = constants;
  return function;
}

Object* new_pipeline(ComputePipelineDescriptor& descriptor, NS::UInteger options, Object** error) {
  if (!descriptor.function) misused("a pipeline without a function");
  const std::vector<Ref<Function>> linked = descriptor.functions();
  if (descriptor.archives) {
    for (const Ref<Object>& one : descriptor.archives->all) {
      const auto& codes = static_cast<BinaryArchive*>(one.get())->codes;
      const auto found = codes.find(identity(*descriptor.function, pointers(linked)));
      if (found != codes.end() && system().finds) return new Pipeline(found->second, linked);
    }
    if ((options & MTL::PipelineOptionFailOnBinaryArchiveMiss) != 0) {
      set_error(error, 1, "the archive has no code for the kernel");
      return nullptr;
    }
  }
  try {
    return new Pipeline(compiled(*descriptor.function, pointers(linked)), linked);
  } catch (const CompileError& wrong) {
    set_error(error, MTL::LibraryErrorCompileFailure, std::string(wrong.log()));
    return nullptr;
  }
}

Object* new_archive(const BinaryArchiveDescriptor& descriptor, Object** error) {
  auto* const archive = new BinaryArchive;
  if (!descriptor.url) return archive;
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
           return fails(message, nullptr) ? nullptr : new Buffer(length);
         });
  method(device, "newBufferWithBytes:length:options:",
         [](Object*, SEL message, const void* bytes, NS::UInteger length, NS::UInteger) -> Object* {
           if (fails(message, nullptr)) return nullptr;
           auto* const buffer = new Buffer(length);
           std::memcpy(buffer->host + Buffer::offset, bytes, length);
           return buffer;
         });
  method(device, "respondsToSelector:", [](Object*, SEL, SEL) -> bool { return true; });
  method(device, "supportsFamily:", [](Object*, SEL, NS::Integer family) -> bool { return family <= system().family; });
  method(device, "newResidencySetWithDescriptor:error:",
         [](Object*, SEL message, ResidencySetDescriptor*, Object** error) -> Object* {
           if (system().family < MTL::GPUFamilyApple6) misused("a residency set on a GPU that has none");
           return fails(message, error) ? nullptr : new ResidencySet;
         });
  method(device, "newLibraryWithSource:options:error:",
         [](Object*, SEL message, String* text, CompileOptions* options, Object** error) -> Object* {
           return fails(message, error) ? nullptr : new_library(text->text, options, error);
         });
  method(device, "newDynamicLibrary:error:", [](Object*, SEL message, Library* library, Object** error) -> Object* {
    if (library->type != MTL::LibraryTypeDynamic) misused("a dynamic library of a library of another type");
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
           return fails(message, error) ? nullptr : new_function(*self, name->text, values->values, error);
         });

  allocatable<LinkedFunctions>("MTLLinkedFunctions");
  method("MTLLinkedFunctions",
         "setPrivateFunctions:", [](LinkedFunctions* self, SEL, Array* functions) { self->functions = functions; });
  method("MTLLinkedFunctions", "setFunctions:", [](LinkedFunctions* self, SEL, Array* functions) {
    self->functions = functions;
    self->in_table = true;
  });
  method("MTLLinkedFunctions", "functions",
         [](LinkedFunctions* self, SEL) -> Object* { return self->in_table ? self->functions.get() : nullptr; });
  method("MTLComputePipelineDescriptor", "linkedFunctions",
         [](ComputePipelineDescriptor* self, SEL) -> Object* { return self->linked.get(); });
  method("MTLComputePipelineState",
         "functionHandleWithFunction:", [](Pipeline* self, SEL message, Function* function) -> Object* {
           if (fails(message, nullptr)) return nullptr;
           for (size_t i = 0; i < self->linked.size(); ++i) {
             if (self->linked[i].get() != function) continue;
             return autoreleased(new FunctionHandle(self->kernel.functions().at(i)));
           }
           return nullptr;
         });
  allocatable<VisibleFunctionTableDescriptor>("MTLVisibleFunctionTableDescriptor");
  method("MTLVisibleFunctionTableDescriptor", "setFunctionCount:",
         [](VisibleFunctionTableDescriptor* self, SEL, NS::UInteger count) { self->count = count; });
  method("MTLComputePipelineState", "newVisibleFunctionTableWithDescriptor:",
         [](Pipeline*, SEL message, VisibleFunctionTableDescriptor* wanted) -> Object* {
           if (fails(message, nullptr)) return nullptr;
           return new Buffer(wanted->count * sizeof(void*), "MTLVisibleFunctionTable");
         });
  method("MTLVisibleFunctionTable",
         "setFunction:atIndex:", [](Buffer* self, SEL, FunctionHandle* handle, NS::UInteger index) {
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
           const std::vector<Ref<Function>> linked = descriptor->functions();
           try {
             self->codes[identity(*descriptor->function, pointers(linked))] =
                 compiled(*descriptor->function, pointers(linked));
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
  method("MTLBuffer", "contents", [](Buffer* self, SEL) -> void* { return self->host + Buffer::offset; });
  method("MTLBuffer", "gpuAddress",
         [](Buffer* self, SEL) -> uint64_t { return reinterpret_cast<uint64_t>(self->gpu + Buffer::offset); });
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

void add_commands() {
  constexpr const char* queue = "MTLCommandQueue";
  method(queue, "addResidencySet:", [](Queue* self, SEL, ResidencySet* set) { self->sets.emplace_back(set); });
  method(queue, "commandBuffer", [](Queue* self, SEL message) -> Object* {
    return fails(message, nullptr) ? nullptr : autoreleased(new CommandBuffer(self));
  });
  constexpr const char* buffer = "MTLCommandBuffer";
  method(buffer, "computeCommandEncoder", [](CommandBuffer* self, SEL message) -> Object* {
    return fails(message, nullptr) ? nullptr : new_encoder(*self, "MTLComputeCommandEncoder");
  });
  method(buffer, "blitCommandEncoder", [](CommandBuffer* self, SEL message) -> Object* {
    return fails(message, nullptr) ? nullptr : new_encoder(*self, "MTLBlitCommandEncoder");
  });
  method(buffer, "commit", [](CommandBuffer* self, SEL) { commit(*self); });
  method(buffer, "status", [](CommandBuffer* self, SEL) -> NS::UInteger {
    if (self->status == MTL::CommandBufferStatusCommitted && ++self->asked > 1 && system().ends) {
      const std::lock_guard lock(self->queue->mutex);
      self->queue->run_until(self);
    }
    return self->status;
  });
  method(buffer, "waitUntilCompleted", [](CommandBuffer* self, SEL) {
    if (self->status < MTL::CommandBufferStatusCommitted) misused("a wait for a command buffer without commit");
    if (self->status >= MTL::CommandBufferStatusCompleted) return;
    if (!system().ends) misused("a wait for a command buffer that does not end");
    const std::lock_guard lock(self->queue->mutex);
    self->queue->run_until(self);
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
  method(compute,
         "setComputePipelineState:", [](Encoder* self, SEL, Pipeline* pipeline) { self->next.pipeline = pipeline; });
  method(compute, "setBytes:length:atIndex:",
         [](Encoder* self, SEL, const void* bytes, NS::UInteger length, NS::UInteger index) {
           if (length == 0 || length > 4096 || index > 30) misused("setBytes takes 1 to 4096 bytes, at 0 to 30");
           const auto* const begin = static_cast<const std::byte*>(bytes);
           self->next.arguments[static_cast<uint32_t>(index)] = {{begin, begin + length}, {}, 0};
         });
  method(compute,
         "setBuffer:offset:atIndex:", [](Encoder* self, SEL, Buffer* bound, NS::UInteger offset, NS::UInteger index) {
           if (offset > bound->length || index > 30) misused("setBuffer with an offset beyond the buffer");
           self->next.arguments[static_cast<uint32_t>(index)] = {{}, bound, offset};
         });
  method(compute,
         "setThreadgroupMemoryLength:atIndex:", [](Encoder* self, SEL, NS::UInteger length, NS::UInteger index) {
           if (length == 0 || length % 16 != 0) misused("threadgroup memory has a multiple of 16 bytes");
           self->next.threadgroup_bytes[static_cast<uint32_t>(index)] = length;
         });
  method(compute,
         "useResources:count:usage:", [](Encoder* self, SEL, Buffer* const* all, NS::UInteger count, NS::UInteger) {
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

}  // namespace
}  // namespace attn::fake

extern "C" {
MTL::Device* MTLCreateSystemDefaultDevice() {
  using namespace attn::fake;
  static const bool added = (add_device(), add_kernels(), add_memory(), add_commands(), true);
  (void)added;
  return system().has_gpu ? reinterpret_cast<MTL::Device*>(new Device) : nullptr;
}
NS::Array* MTLCopyAllDevices() { return nullptr; }
NS::Array* MTLCopyAllDevicesWithObserver(NS::Object**, MTL::DeviceNotificationHandlerBlock) { return nullptr; }
void MTLRemoveDeviceObserver(const NS::Object*) {}
}
