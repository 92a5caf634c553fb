// Wrong sequences of messages, each of which the fake must find. They use metal-cpp as the device does.
#include <functional>
#include <utility>
#include <vector>

#include "common/backends/metal/fake/fake.h"
#include "common/backends/metal/gpu.h"

namespace attn::fake {

namespace {

constexpr const char* text = R"(#include <metal_stdlib>
struct Params {
  device float* out;
};
kernel void add(constant Params& p [[buffer(0)]], uint thread_index [[thread_index_in_threadgroup]]) {
  p.out[thread_index] += 1;
}
[[stitchable]] float twice(float x) { return 2 * x; }
[[stitchable]] int next(int i) { return i + 1; }
[[visible]] float half_of(float x) { return x / 2; }
)";

/// All that a launch needs.
struct World {
  World() {
    NS::Error* error = nullptr;
    const auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
    library = NS::TransferPtr(gpu->newLibrary(string_of(text), options.get(), &error));
    const auto constants = NS::TransferPtr(MTL::FunctionConstantValues::alloc()->init());
    function = NS::TransferPtr(library->newFunction(string_of("add"), constants.get(), &error));
    const auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
    descriptor->setComputeFunction(function.get());
    pipeline =
        NS::TransferPtr(gpu->newComputePipelineState(descriptor.get(), MTL::PipelineOptionNone, nullptr, &error));
    memory = NS::TransferPtr(gpu->newBuffer(1024, MTL::ResourceStorageModeShared));
    address = memory->gpuAddress();
  }
  MTL::ComputeCommandEncoder* encoder() {
    buffer = queue->commandBuffer();
    return open = buffer->computeCommandEncoder();
  }
  /// Binds everything.
  void bind(MTL::ComputeCommandEncoder* compute) {
    const MTL::Resource* const all[] = {memory.get()};
    compute->useResources(all, 1, MTL::ResourceUsageWrite);
    compute->setComputePipelineState(pipeline.get());
    compute->setBytes(&address, sizeof address, 0);
  }
  void end() {
    open->endEncoding();
    open = nullptr;
  }
  ~World() {
    if (open) open->endEncoding();
  }

  const Pool pool;
  const Owned<MTL::Device> gpu = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
  const Owned<MTL::CommandQueue> queue = NS::TransferPtr(gpu->newCommandQueue());
  Owned<MTL::Library> library;
  Owned<MTL::Function> function;
  Owned<MTL::ComputePipelineState> pipeline;
  Owned<MTL::Buffer> memory;
  uint64_t address = 0;
  MTL::CommandBuffer* buffer = nullptr;
  MTL::ComputeCommandEncoder* open = nullptr;
};

const MTL::Size one(1, 1, 1);

/// Makes a library of twice(), of `function`, and of a graph that calls `called` with the result of twice(). The node
/// of twice() has `inputs`. The graph's array has this node if `has_node`, and the output node if `has_output`.
void stitch(World& world, const char* function, const char* called, const std::vector<NS::UInteger>& inputs,
            bool has_node = true, bool has_output = false) {
  std::vector<Owned<MTL::FunctionStitchingInputNode>> owned;
  std::vector<const NS::Object*> arguments, nodes;
  for (const NS::UInteger input : inputs) {
    owned.push_back(NS::TransferPtr(MTL::FunctionStitchingInputNode::alloc()->init(input)));
    arguments.push_back(owned.back().get());
  }
  const auto node_of = [&](const char* name, const NS::Array* its) {
    return NS::TransferPtr(MTL::FunctionStitchingFunctionNode::alloc()->init(string_of(name), its, NS::Array::array()));
  };
  const auto first = node_of("twice", NS::Array::array(arguments.data(), arguments.size()));
  const auto last = node_of(called, NS::Array::array(first.get()));
  if (has_node) nodes.push_back(first.get());
  if (has_output) nodes.push_back(last.get());
  const auto graph = NS::TransferPtr(MTL::FunctionStitchingGraph::alloc()->init(
      string_of("made"), NS::Array::array(nodes.data(), nodes.size()), last.get(), NS::Array::array()));
  const auto twice = NS::TransferPtr(world.library->newFunction(string_of("twice")));
  const auto other = NS::TransferPtr(world.library->newFunction(string_of(function)));
  const NS::Object* const functions[] = {twice.get(), other.get()};
  const auto descriptor = NS::TransferPtr(MTL::StitchedLibraryDescriptor::alloc()->init());
  descriptor->setFunctions(NS::Array::array(functions, 2));
  descriptor->setFunctionGraphs(NS::Array::array(graph.get()));
  NS::Error* error = nullptr;
  NS::TransferPtr(world.gpu->newLibrary(descriptor.get(), &error));
}

/// A misuse by its name. An empty name: no misuse, for comparison.
const std::vector<std::pair<const char*, void (*)(World&)>>& misuses() {
  static const std::vector<std::pair<const char*, void (*)(World&)>> all = {
      {"a message to a released object",
       [](World& world) {
         MTL::Fence* const fence = world.gpu->newFence();
         fence->release();
         fence->retain();
       }},
      {"an unknown message", [](World& world) { world.gpu->newEvent(); }},
      {"no pipeline", [](World& world) { world.encoder()->dispatchThreadgroups(one, one); }},
      {"no argument",
       [](World& world) {
         world.encoder()->setComputePipelineState(world.pipeline.get());
         world.open->dispatchThreadgroups(one, one);
       }},
      {"an argument too many",
       [](World& world) {
         world.bind(world.encoder());
         world.open->setBytes(&world.address, sizeof world.address, 1);
         world.open->dispatchThreadgroups(one, one);
       }},
      {"threadgroup memory that the kernel does not have",
       [](World& world) {
         world.bind(world.encoder());
         world.open->setThreadgroupMemoryLength(16, 0);
         world.open->dispatchThreadgroups(one, one);
       }},
      {"threadgroup memory of 20 bytes", [](World& world) { world.encoder()->setThreadgroupMemoryLength(20, 0); }},
      {"too many threads",
       [](World& world) {
         world.bind(world.encoder());
         world.open->dispatchThreadgroups(one, MTL::Size(2048, 1, 1));
       }},
      {"no threadgroups",
       [](World& world) {
         world.bind(world.encoder());
         world.open->dispatchThreadgroups(MTL::Size(0, 1, 1), one);
       }},
      {"an argument of 5000 bytes",
       [](World& world) {
         const char bytes[5000] = {};
         world.encoder()->setBytes(bytes, sizeof bytes, 0);
       }},
      {"an encoder that is not ended",
       [](World& world) {
         world.bind(world.encoder());
         world.buffer->commit();
       }},
      {"a command after endEncoding",
       [](World& world) {
         MTL::ComputeCommandEncoder* const encoder = world.encoder();
         world.end();
         world.bind(encoder);
         encoder->dispatchThreadgroups(one, one);
       }},
      {"a pipeline after endEncoding",
       [](World& world) {
         MTL::ComputeCommandEncoder* const encoder = world.encoder();
         world.end();
         encoder->setComputePipelineState(world.pipeline.get());
       }},
      {"an argument of the launch before",
       [](World& world) {
         world.bind(world.encoder());
         world.open->dispatchThreadgroups(one, one);
         world.open->setComputePipelineState(world.pipeline.get());
         world.open->dispatchThreadgroups(one, one);
       }},
      {"threadgroup memory of the launch before",
       [](World& world) {
         world.encoder()->setThreadgroupMemoryLength(16, 0);
         world.bind(world.open);
         world.open->dispatchThreadgroups(one, one);
       }},
      {"a fence that none updates",
       [](World& world) {
         const auto fence = NS::TransferPtr(world.gpu->newFence());
         world.encoder()->waitForFence(fence.get());
         world.end();
         world.buffer->commit();
       }},
      {"65 command buffers",
       [](World& world) {
         system().ends = false;
         for (int i = 0; i < 65; ++i) world.queue->commandBuffer()->commit();
       }},
      {"a residency set before macOS 15",
       [](World& world) {
         system().macos = 14;
         NS::Error* error = nullptr;
         const auto wanted = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
         world.gpu->newResidencySet(wanted.get(), &error);
       }},
      {"a kernel linked with a kernel",
       [](World& world) {
         const NS::Object* const all[] = {world.function.get()};
         const auto links = NS::TransferPtr(MTL::LinkedFunctions::alloc()->init());
         links->setPrivateFunctions(NS::Array::array(all, 1));
       }},
      {"a graph of a function that is not stitchable", [](World& world) { stitch(world, "half_of", "twice", {0}); }},
      {"a graph that calls a function it lacks", [](World& world) { stitch(world, "next", "half_of", {0}); }},
      {"a graph without an input node", [](World& world) { stitch(world, "twice", "twice", {1}); }},
      {"a node with an argument too many", [](World& world) { stitch(world, "twice", "twice", {0, 1}); }},
      {"a node with an argument of another type", [](World& world) { stitch(world, "next", "next", {0}); }},
      {"a graph without the node of an argument", [](World& world) { stitch(world, "twice", "twice", {0}, false); }},
      {"an output node among the other nodes", [](World& world) { stitch(world, "twice", "twice", {0}, true, true); }},
      {"no text",
       [](World& world) {
         NS::Error* error = nullptr;
         world.gpu->newLibrary(nullptr, nullptr, &error);
       }},
      {"two commits",
       [](World& world) {
         world.encoder();
         world.end();
         world.buffer->commit();
         world.buffer->commit();
       }},
      {"encoders without a fence",
       [](World& world) {
         for (int i = 0; i < 2; ++i) {
           world.encoder();
           world.end();
           world.buffer->commit();
         }
       }},
      {"a time before the end",
       [](World& world) {
         world.encoder();
         world.end();
         world.buffer->commit();
         world.buffer->GPUEndTime();
       }},
      {"a fill of 3 bytes",
       [](World& world) {
         MTL::BlitCommandEncoder* const blit = world.queue->commandBuffer()->blitCommandEncoder();
         blit->endEncoding();
         blit->fillBuffer(world.memory.get(), NS::Range::Make(0, 3), 0);
       }},
  };
  return all;
}

}  // namespace

std::string misuse(int number) {
  if (number < 0 || static_cast<size_t>(number) >= misuses().size()) return {};
  World world;
  misuses()[static_cast<size_t>(number)].second(world);
  return misuses()[static_cast<size_t>(number)].first;
}

}  // namespace attn::fake
